//! The loop: a seed, damaged, handed to a target under the rules. The rules are those of SECURITY.md: no panic, at most twice the
//! input plus 16 MiB held at once, under one second of processor time. The input that is being run is always in a file, so that one which takes the
//! whole process down can be found there.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::measure::{Taken, measure};
use crate::mutate::{Draws, mutate};
use crate::targets::Target;

/// Bytes that a parser may hold beside twice its input.
pub const BESIDE: usize = 16 << 20;
/// The most processor time that one input may take.
pub const LONGEST: Duration = Duration::from_secs(1);
/// Of so many inputs one begins with a seed that is dear to run.
const RARE: usize = 512;

/// What became of all inputs.
#[derive(Debug, Default)]
pub struct Report {
    /// How many were run.
    pub inputs: u64,
    /// How many were accepted as good files.
    pub accepted: u64,
    /// Each broken rule, and the file that holds its input.
    pub faults: Vec<(String, PathBuf)>,
    /// The most that one input took, of each.
    pub most: Taken,
}

/// Which rule a call broke, if any; otherwise whether it accepted the input.
pub fn judge(target: &Target, bytes: &[u8]) -> (Result<bool, String>, Taken) {
    let (answer, taken) = measure(|| catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))));
    let limit = 2 * bytes.len() + BESIDE;
    let verdict = match answer {
        Err(panic) => {
            let word = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", word.unwrap_or("without a word")))
        }
        Ok(_) if taken.bytes > limit => Err(format!("{} bytes held, where {limit} are allowed", taken.bytes)),
        Ok(_) if taken.time > LONGEST => Err(format!("{:.1} s, where 1 is allowed", taken.time.as_secs_f64())),
        Ok(accepted) => Ok(accepted),
    };
    (verdict, taken)
}

/// Runs `inputs` inputs of `seed`; what breaks a rule goes into `folder`. Stops after ten faults.
///
/// # Errors
/// The system's, of files in `folder`.
pub fn drive(target: &Target, seed: u64, inputs: u64, folder: &Path) -> std::io::Result<Report> {
    let (common, rare): (Vec<_>, Vec<_>) = (target.seeds)().into_iter().partition(|seed| !seed.rare);
    let current = File::create(folder.join(format!("{}.current", target.name)))?;
    let mut report = Report::default();
    let mut bytes = Vec::new();
    for input in 0..inputs {
        let mut draws = Draws::new(seed, input);
        let from = if !rare.is_empty() && draws.below(RARE) == 0 { &rare } else { &common };
        let chosen = &from[draws.below(from.len())].bytes;
        let other = &from[draws.below(from.len())].bytes;
        bytes.clear();
        bytes.extend_from_slice(chosen);
        mutate(&mut bytes, &mut draws, other, target.words);
        current.write_all_at(&(bytes.len() as u64).to_le_bytes(), 0)?;
        current.write_all_at(&bytes, 8)?;
        let (verdict, taken) = judge(target, &bytes);
        report.inputs += 1;
        report.most.bytes = report.most.bytes.max(taken.bytes);
        report.most.time = report.most.time.max(taken.time);
        match verdict {
            Ok(accepted) => report.accepted += u64::from(accepted),
            Err(fault) => {
                let path = folder.join(format!("{}-{seed}-{input}", target.name));
                std::fs::write(&path, &bytes)?;
                report.faults.push((fault, path));
                if report.faults.len() == 10 {
                    break;
                }
            }
        }
    }
    Ok(report)
}
