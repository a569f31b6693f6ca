//! A trainer made from llama.cpp, where the user has one. Such programs have no common way to say how long a step took, so the same
//! command is run on a short text and on a longer one: start-up cancels out, and what is left is the time of so many more tokens.
//! Programs that go over a text in overlapping windows work on more tokens than they are given; the figure is by tokens given.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::child::Turn;
use super::table::Measured;
use super::{RANK, Row};
use crate::failure::{Failure, Result};
use crate::process::{cpu_time, peak_rss};

/// Records of the short and of the long text.
const RECORDS: [usize; 2] = [4, 8];
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Runs `trainer` on a model of the row.
///
/// # Errors
/// When it can't be started, fails, or does not take longer for more.
pub fn measure(trainer: &Path, model: &Path, row: &Row, threads: usize, folder: &Path) -> Result<Measured> {
    let mut took = Vec::new();
    for records in RECORDS {
        let text = folder.join(format!("llama-{records}.txt"));
        // Lower-case letters are a token each to the tokenizer of the models written here.
        let content: Vec<u8> = (0..row.seq * records).map(|at| b'a' + (at * 7919 % 26) as u8).collect();
        std::fs::write(&text, content).map_err(|error| Failure::io(&text, error))?;
        let mut command = Command::new(trainer);
        command.arg("-m").arg(model).arg("-f").arg(&text).current_dir(folder);
        for (option, number) in [
            ("-c", row.seq),
            ("-b", row.seq),
            ("-ub", row.seq),
            ("-t", threads),
            ("--lora-rank", RANK),
            ("--lora-alpha", 2 * RANK),
        ] {
            command.arg(option).arg(number.to_string());
        }
        command.args(["--lora-modules", "all"]);
        took.push(run(command, folder)?);
    }
    let (cpu, wall) = a_record(&took[0], &took[1])?;
    // The program's loss is not read.
    Ok(Measured { turns: vec![Turn { cpu, wall, loss: f64::NAN }], peak: took[1].peak, mfu_seconds: None })
}

/// CPU seconds and seconds of one record, from runs over few and over more.
fn a_record(short: &Run, long: &Run) -> Result<(f64, f64)> {
    let more = (RECORDS[1] - RECORDS[0]) as f64;
    let (cpu, wall) = ((long.cpu - short.cpu) / more, (long.wall - short.wall) / more);
    if wall <= 0.0 || cpu <= 0.0 {
        return Err(Failure::new("it took no longer for a longer text, so nothing can be said of a step"));
    }
    Ok((cpu, wall))
}

struct Run {
    cpu: f64,
    wall: f64,
    peak: u64,
}

/// Runs to the end, looking on.
fn run(mut command: Command, folder: &Path) -> Result<Run> {
    let words = folder.join("llama-words");
    let log = || File::create(&words).map_err(|error| Failure::io(&words, error));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log()?);
    let start = Instant::now();
    let mut child = command.spawn().map_err(|error| Failure::io(command.get_program(), error))?;
    let (mut cpu, mut peak) = (0.0_f64, 0);
    let ended = loop {
        if let Some(ended) = child.try_wait().map_err(|error| Failure::io(&words, error))? {
            break ended;
        }
        // A process that just ended has no figures any more; the last ones stand.
        cpu = cpu.max(cpu_time(child.id()).map_or(0.0, |time| time.as_secs_f64()));
        peak = peak.max(peak_rss(child.id()).unwrap_or(0));
        std::thread::sleep(BETWEEN_LOOKS);
    };
    if !ended.success() {
        let said = std::fs::read_to_string(&words).unwrap_or_default();
        return Err(Failure::new(format!("it ended ({ended}): {}", said.lines().last().unwrap_or("without a word"))));
    }
    Ok(Run { cpu, wall: start.elapsed().as_secs_f64(), peak })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_up_cancels_out() {
        let run = |records: f64| Run { cpu: 3.0 + 0.5 * records, wall: 7.0 + 0.25 * records, peak: 1 };
        let [short, long] = RECORDS.map(|records| run(records as f64));
        assert_eq!(a_record(&short, &long).unwrap(), (0.5, 0.25));
        assert!(a_record(&long, &short).unwrap_err().to_string().contains("no longer"));
    }

    #[test]
    fn a_trainer_that_fails_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let row = Row { shape: "smollm2-135m".into(), seq: 100 };
        // A shell takes the model for a script, and finds none.
        let fault = measure(Path::new("/bin/sh"), Path::new("no-such-model"), &row, 1, folder.path()).unwrap_err();
        assert!(fault.to_string().contains("no-such-model"), "{fault}");
    }
}
