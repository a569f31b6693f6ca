//! `pocketune bench`: what this machine reaches, as a table or as JSON, kept as the planner's profile.

use std::path::{Path, PathBuf};

use pocketune::backend::bench::{COLS, RANK, ROWS, Reached, TOKENS, measure};
use pocketune::plan::{Machine, Rates};
use pocketune::store::{check_writable, find_profile, keep_profile, processor};
use pocketune::train::RunOptions;
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::{Failure, note, say};

/// Measures, prints and keeps.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let machine = RunOptions { threads: args.threads, precision: args.precision.choice(), rates: None };
    let machine = machine.machine().map_err(Failure::new)?;
    let folder = args.spill_dir.as_deref().unwrap_or(Path::new("."));
    let path = if args.no_save { None } else { Some(place()?) };
    let reached = measure(machine, folder).map_err(Failure::new)?;
    say(&if args.json { format!("{:#}\n", as_json(machine, &reached)) } else { as_text(machine, &reached, folder) });
    if let Some(path) = path {
        keep_profile(&path, machine, reached.rates()).map_err(Failure::new)?;
        note(&format!("Kept for the planner in {}", path.display()));
    }
    Ok(())
}

/// Where the profile will be kept, if it can be.
fn place() -> Result<PathBuf, Failure> {
    let path = path().ok_or_else(|| {
        Failure("no place for the profile: neither XDG_CACHE_HOME nor HOME is set; --no-save keeps none".into())
    })?;
    check_writable(path.parent().unwrap_or(Path::new("."))).map_err(Failure::new)?;
    Ok(path)
}

/// Where the profile is kept.
fn path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("pocketune/profile.json"))
}

/// What was kept for `machine`; a profile that can't be used is a note, and rates are measured afresh.
pub fn kept(machine: Machine) -> Option<Rates> {
    find_profile(&path()?, machine).unwrap_or_else(|fault| {
        note(&format!("Profile: {fault}; measured afresh (`pocketune bench` makes one)"));
        None
    })
}

fn as_text(machine: Machine, reached: &Reached, folder: &Path) -> String {
    let Machine { threads, isa, precision } = machine;
    let mut text = format!(
        "{}: {} in {precision:?}, {threads} threads\n\n{ROWS}x{COLS} with {TOKENS} rows, GFLOP/s, and dequantised, GB/s of the file\n  {:<6} {:>9} {:>9} {:>11}\n",
        processor(),
        isa.name(),
        "type",
        "x Wᵀ",
        "g W",
        "dequantise"
    );
    for rates in &reached.types {
        let stored = rates.ty.block_bytes() as f64 / rates.ty.block_len() as f64;
        text.push_str(&format!(
            "  {:<6} {:>9.1} {:>9.1} {:>11.2}\n",
            rates.ty.name(),
            rates.forward / 1e9,
            rates.backward / 1e9,
            stored * rates.dequantise / 1e9
        ));
    }
    let [down, up, gradient] = reached.thin.map(|rate| rate / 1e9);
    let [forward, backward] = reached.attention.map(|rate| rate / 1e9);
    text.push_str(&format!(
        "\nadapter of rank {RANK}   {down:.1} x Aᵀ, {up:.1} h B, {gradient:.1} gᵀ x, GFLOP/s\n\
         attention            {forward:.1} forward, {backward:.1} backward, GFLOP/s\n\
         pass over values     {:.1} GB/s\n\
         disk of {}   {:.0} MB/s to it, {:.0} MB/s from it\n",
        reached.pass / 1e9,
        folder.display(),
        reached.write / 1e6,
        reached.read / 1e6
    ));
    text
}

fn as_json(machine: Machine, reached: &Reached) -> Value {
    let types: Vec<Value> = reached
        .types
        .iter()
        .map(|rates| {
            json!({
                "type": rates.ty.name(),
                "forward_flops": rates.forward,
                "backward_flops": rates.backward,
                "dequantised_per_second": rates.dequantise,
            })
        })
        .collect();
    json!({
        "processor": processor(),
        "isa": machine.isa.name(),
        "precision": format!("{:?}", machine.precision).to_lowercase(),
        "threads": machine.threads,
        "version": env!("CARGO_PKG_VERSION"),
        "product": { "rows": ROWS, "cols": COLS, "tokens": TOKENS, "types": types },
        "adapter_flops": { "down": reached.thin[0], "up": reached.thin[1], "gradient": reached.thin[2] },
        "attention_flops": { "forward": reached.attention[0], "backward": reached.attention[1] },
        "pass_bytes_per_second": reached.pass,
        "disk_write_bytes_per_second": reached.write,
        "disk_read_bytes_per_second": reached.read,
    })
}
