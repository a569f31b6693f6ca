//! `pocketune quantize`: a model in another type.

use std::path::Path;
use std::time::Instant;

use pocketune::export::{Fallback, Quantized, quantize};
use pocketune::memory::Peak;
use pocketune::model::{Model, Source};
use pocketune::train::Budget;
use serde_json::{Value, json};

use crate::args::QuantizeArgs;
use crate::{Failure, note, say};

/// Quantises, and says what was written and who reads it.
pub fn run(args: &QuantizeArgs) -> Result<(), Failure> {
    let start = Instant::now();
    let budget = args.memory_budget.as_deref().map_or(Ok(Budget::Available), Budget::parse).map_err(Failure::new)?;
    let model = Model::open(&Source::Path(args.model.clone())).map_err(Failure::new)?;
    let done = quantize(&model, args.ty, &args.output, budget).map_err(Failure::new)?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        let mut report = report(&done, &args.output);
        report["seconds"] = json!(seconds);
        report["peak_bytes"] = json!(Peak::default().look().total);
        say(&format!("{report}\n"));
        return Ok(());
    }
    describe(&done, &args.output);
    note(&format!("Next: llama-cli -m {}", args.output.display()));
    Ok(())
}

/// What was written, in words.
fn describe(done: &Quantized, out: &Path) {
    let types: Vec<String> = done.types.iter().map(|(ty, count)| format!("{count} in {}", ty.name())).collect();
    let megabytes = done.bytes as f64 / 1e6;
    note(&format!("Wrote {} ({megabytes:.1} MB): tensors {}", out.display(), types.join(", ")));
    say_fallbacks(&done.fallbacks);
    done.notes.iter().for_each(|line| note(line));
}

/// Which tensors have another type than they were meant to.
pub fn say_fallbacks(fallbacks: &[(Fallback, usize)]) {
    for (fallback, count) in fallbacks {
        note(&format!(
            "{count} x {} in place of {}: rows of {} are no whole number of its blocks",
            fallback.got.name(),
            fallback.wanted.name(),
            fallback.cols
        ));
    }
}

/// The same as JSON.
fn report(done: &Quantized, out: &Path) -> Value {
    let types: serde_json::Map<String, Value> =
        done.types.iter().map(|(ty, count)| (ty.name().into(), json!(count))).collect();
    let fallbacks = fallbacks(&done.fallbacks);
    json!({ "output": out, "bytes": done.bytes, "types": types, "fallbacks": fallbacks, "notes": done.notes })
}

/// [`say_fallbacks`] as JSON.
pub fn fallbacks(fallbacks: &[(Fallback, usize)]) -> Vec<Value> {
    let one = |(fallback, count): &(Fallback, usize)| {
        let (wanted, got) = (fallback.wanted.name(), fallback.got.name());
        json!({ "cols": fallback.cols, "wanted": wanted, "got": got, "tensors": count })
    };
    fallbacks.iter().map(one).collect()
}
