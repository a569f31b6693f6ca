//! `pocketune-bench products`: the rates of products with frozen linears of real models, by how their weights are stored, beside PyTorch's
//! product of ready floats. All of a row run in turn, and the shortest run of each counts. A type that is far slower than another, or
//! Q4_0 in f32 that is more than a tenth slower than PyTorch, makes the command fail at the end.

mod ours;
mod peer;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pocketune_kernels::matmul::Precision;
use pocketune_kernels::{BlockType, Isa, Pool};

use crate::failure::{Failure, Result};
use crate::process::{load, processor};
use crate::say;
use ours::Linear;
use peer::Peer;

/// A type takes at most this many times as long as the fastest.
const FAR: f64 = 3.0;
/// Q4_0 in f32 reaches at least this share of what PyTorch does.
const SHARE: f64 = 0.9;

/// Which side of a linear the sum runs along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// `x Wᵀ`.
    Forward,
    /// `g W`.
    Backward,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::Forward => "x Wᵀ",
            Direction::Backward => "g W",
        }
    }
}

/// What is multiplied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Multiplied {
    F32,
    Bf16,
    Int16,
}

impl Multiplied {
    fn precision(self) -> Precision {
        match self {
            Multiplied::F32 => Precision::F32,
            Multiplied::Bf16 => Precision::Bf16,
            Multiplied::Int16 => Precision::Int16,
        }
    }

    /// What PyTorch multiplies beside it: it has no such integers, and floats are what it is fastest in where those are used.
    fn peer(self) -> &'static str {
        if self == Multiplied::Bf16 { "bf16" } else { "f32" }
    }
}

/// What `products` was asked for.
#[derive(Args)]
pub struct Options {
    /// Linears, outputs by inputs.
    #[arg(long, value_delimiter = ',', value_name = "OUTxIN", value_parser = linear,
        default_values = ["576x576", "1536x576", "576x1536", "896x896", "4864x896", "896x4864", "8960x1536", "1536x8960"])]
    linears: Vec<(usize, usize)>,
    /// Tokens that meet them.
    #[arg(long, value_delimiter = ',', default_values_t = [256])]
    tokens: Vec<usize>,
    /// How weights are stored [default: every type].
    #[arg(long, value_delimiter = ',', value_parser = block_type)]
    types: Vec<BlockType>,
    /// What is multiplied [default: what the processor multiplies fastest].
    #[arg(long, value_enum)]
    precision: Option<Multiplied>,
    /// Threads.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Rounds; each runs everything for as long as --milliseconds says.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each product runs in a round.
    #[arg(long, default_value_t = 40)]
    milliseconds: u64,
    /// Without PyTorch.
    #[arg(long)]
    alone: bool,
    /// A Python with the packages of bench/peers-requirements.txt [default: $POCKETUNE_PYTHON, or python3].
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

fn linear(text: &str) -> std::result::Result<(usize, usize), String> {
    let side = |text: &str| text.parse().ok().filter(|side| (1..=1 << 17).contains(side));
    let sides = text.split_once('x').and_then(|(rows, cols)| Some((side(rows)?, side(cols)?)));
    sides.ok_or_else(|| "outputs and inputs, such as 4864x896".into())
}

fn block_type(text: &str) -> std::result::Result<BlockType, String> {
    let names = || BlockType::ALL.map(BlockType::name).join(", ");
    let named = BlockType::ALL.into_iter().find(|ty| ty.name() == text);
    named.ok_or_else(|| format!("one of {}", names()))
}

/// Measures, and prints the table as it fills.
///
/// # Errors
/// When a kernel gives other numbers than its reference, PyTorch can't be run, or a rate is too low.
pub fn run(options: &Options) -> Result<()> {
    let isa = Isa::detect().map_err(Failure::new)?;
    let multiplied = options.precision.unwrap_or(match isa.precision() {
        Precision::F32 => Multiplied::F32,
        Precision::Bf16 => Multiplied::Bf16,
        Precision::Int16 => Multiplied::Int16,
    });
    let precision = multiplied.precision();
    let threads = usize::from(options.threads);
    let pool = Pool::new(threads).map_err(|error| Failure::new(format!("threads: {error}")))?;
    let folder = tempfile::tempdir().map_err(|error| Failure::io(std::env::temp_dir(), error))?;
    let mut peer = match options.alone {
        true => None,
        false => Some(Peer::start(options.python.as_deref(), threads, multiplied.peer(), folder.path())?),
    };
    let types = if options.types.is_empty() { BlockType::ALL.to_vec() } else { options.types.clone() };
    say(&format!(
        "GFLOP/s of products in {} on {}, {threads} threads, the best of {} rounds in turn; {}; {}, load {} at the start\n\n{}",
        precision.name(),
        isa.name(),
        options.rounds,
        peer.as_ref().map_or("no PyTorch", |peer| &peer.about),
        processor(),
        load().map_or("unknown".into(), |load| format!("{load:.1}")),
        head(&types, peer.is_some()),
    ));
    let each = Duration::from_millis(options.milliseconds);
    let mut faults = Vec::new();
    for (&(rows, cols), &tokens) in options.linears.iter().flat_map(|l| options.tokens.iter().map(move |t| (l, t))) {
        let machine = (&pool, isa, precision);
        let mut linears: Vec<Option<Linear>> =
            types.iter().map(|&ty| Linear::new(machine, ty, (rows, cols), tokens)).collect();
        for direction in [Direction::Forward, Direction::Backward] {
            for linear in linears.iter_mut().flatten() {
                linear.check(direction)?;
            }
            let mut least = vec![f64::INFINITY; types.len()];
            let mut theirs = f64::INFINITY;
            for _ in 0..options.rounds {
                for (least, linear) in least.iter_mut().zip(&mut linears) {
                    *least = linear.as_mut().map_or(f64::INFINITY, |linear| linear.least(direction, each)).min(*least);
                }
                if let Some(peer) = &mut peer {
                    theirs = peer.least(direction, (rows, cols), tokens, each)?.min(theirs);
                }
            }
            let operations = 2.0 * (tokens * rows * cols) as f64;
            let row = Row {
                place: format!("{rows}x{cols}, {tokens} rows, {}", direction.name()),
                rates: types.iter().zip(&least).map(|(&ty, least)| (ty, operations / least)).collect(),
                peer: peer.as_ref().map(|_| operations / theirs),
            };
            say(&row.line());
            faults.extend(row.faults(multiplied));
        }
    }
    match faults.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} rates too low: {}", faults.join("; ")))),
    }
}

fn head(types: &[BlockType], peer: bool) -> String {
    let mut columns: Vec<&str> = types.iter().map(|ty| ty.name()).collect();
    if peer {
        columns.extend(["torch.mm", "q4_0 of it"]);
    }
    format!("| product | {} |\n|---|{}\n", columns.join(" | "), "--:|".repeat(columns.len()))
}

/// A product, and operations a second by type; zero where a row would be no whole number of blocks.
struct Row {
    place: String,
    rates: Vec<(BlockType, f64)>,
    peer: Option<f64>,
}

impl Row {
    fn line(&self) -> String {
        let shown = |rate: f64| if rate > 0.0 { format!("{:.0}", rate / 1e9) } else { "–".into() };
        let mut cells: Vec<String> = self.rates.iter().map(|&(_, rate)| shown(rate)).collect();
        if let Some(peer) = self.peer {
            cells.push(shown(peer));
            cells.push(self.share().map_or("–".into(), |share| format!("{share:.2}x")));
        }
        format!("| {} | {} |\n", self.place, cells.join(" | "))
    }

    /// Q4_0's rate as a share of PyTorch's.
    fn share(&self) -> Option<f64> {
        let ours = self.rates.iter().find(|(ty, rate)| *ty == BlockType::Q4_0 && *rate > 0.0)?;
        Some(ours.1 / self.peer?)
    }

    fn faults(&self, multiplied: Multiplied) -> Vec<String> {
        let fastest = self.rates.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
        let far = |&&(_, rate): &&(BlockType, f64)| rate > 0.0 && rate * FAR < fastest;
        let mut faults: Vec<String> = self
            .rates
            .iter()
            .filter(far)
            .map(|&(ty, rate)| {
                format!(
                    "{}: {} has {:.0} GFLOP/s where another type has {:.0}",
                    self.place,
                    ty.name(),
                    rate / 1e9,
                    fastest / 1e9
                )
            })
            .collect();
        if let Some(share) = self.share().filter(|&share| multiplied == Multiplied::F32 && share < SHARE) {
            faults.push(format!("{}: q4_0 reaches {share:.2}x of torch.mm, {SHARE}x wanted", self.place));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rates: [f64; 3], peer: Option<f64>) -> Row {
        let types = [BlockType::Q4_0, BlockType::Q4_K, BlockType::F32];
        let rates = types.into_iter().zip(rates.map(|rate| rate * 1e9)).collect();
        Row { place: "7x9, 5 rows, g W".into(), rates, peer: peer.map(|rate| rate * 1e9) }
    }

    #[test]
    fn a_type_that_is_far_slower_than_another_is_a_fault_and_one_without_whole_blocks_is_none() {
        assert_eq!(row([90.0, 31.0, 50.0], None).faults(Multiplied::Bf16), Vec::<String>::new());
        assert_eq!(row([90.0, 0.0, 50.0], None).faults(Multiplied::Bf16), Vec::<String>::new());
        let faults = row([90.0, 29.0, 50.0], None).faults(Multiplied::Bf16);
        assert!(faults.len() == 1 && faults[0].contains("q4_k has 29"), "{faults:?}");
    }

    #[test]
    fn four_bits_in_f32_must_be_within_a_tenth_of_the_peer() {
        assert!(row([91.0, 90.0, 90.0], Some(100.0)).faults(Multiplied::F32).is_empty());
        assert!(row([89.0, 90.0, 90.0], Some(100.0)).faults(Multiplied::F32)[0].contains("0.89x"));
        assert!(row([89.0, 90.0, 90.0], Some(100.0)).faults(Multiplied::Bf16).is_empty());
        assert!(row([91.0, 0.0, 90.0], Some(100.0)).line().ends_with("| 91 | – | 90 | 100 | 0.91x |\n"));
    }

    #[test]
    fn a_linear_is_two_numbers() {
        assert_eq!(linear("4864x896"), Ok((4864, 896)));
        for text in ["4864", "x", "0x3", "3x0", "1x99999999"] {
            assert!(linear(text).is_err(), "{text}");
        }
        assert!(block_type("q9").unwrap_err().contains("q6_k"));
    }
}
