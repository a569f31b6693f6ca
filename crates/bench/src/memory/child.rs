//! Runs a training in a process of its own and watches its memory from outside, as Linux counts it. Peaks are the highest of every
//! look (each 5 ms), of the system's high-water mark, and of what the program says of itself: a run can't look smaller than it was.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pocketune::memory::Resident;
use serde_json::Value;

use crate::failure::{Failure, Result};

const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// True peaks, in bytes.
    pub peak: Resident,
    /// The peak that the program planned, in bytes.
    pub planned: usize,
    /// The median of its updates.
    pub seconds_a_step: f64,
}

/// Runs `command`, which reports in JSON lines; what it prints goes to files in `folder`.
///
/// # Errors
/// When it can't be started or watched, fails (with its own last line), or reports nothing.
pub fn run(mut command: Command, folder: &Path) -> Result<Measured> {
    let (out, err) = (folder.join("out"), folder.join("err"));
    let create = |path| File::create(path).map_err(|error| Failure::io(path, error));
    let read = |path| std::fs::read_to_string(path).map_err(|error| Failure::io(path, error));
    command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?);
    let mut child = command.spawn().map_err(|error| Failure::io(command.get_program(), error))?;
    let peak = watch(&mut child);
    let ended = child.wait().map_err(|error| Failure::io(command.get_program(), error))?;
    if !ended.success() {
        let said = read(&err)?;
        return Err(Failure::new(said.lines().last().map_or_else(|| ended.to_string(), String::from)));
    }
    let mut measured = reports(&read(&out)?)?;
    let own = measured.peak;
    let peak = peak?;
    measured.peak = Resident { total: own.total.max(peak.total), anon: own.anon.max(peak.anon) };
    Ok(measured)
}

/// Looks until the process ends.
fn watch(child: &mut Child) -> Result<Resident> {
    let place = format!("/proc/{}/status", child.id());
    let mut peak = Resident::default();
    while child.try_wait().map_err(|error| Failure::io(&place, error))?.is_none() {
        // Until it is waited for, a process that ended still has a status, without figures.
        let now = figures(&std::fs::read_to_string(&place).map_err(|error| Failure::io(&place, error))?);
        peak = Resident { total: peak.total.max(now.total), anon: peak.anon.max(now.anon) };
        std::thread::sleep(BETWEEN_LOOKS);
    }
    Ok(peak)
}

/// The figures of a process's `status`; zeros where there are none.
fn figures(status: &str) -> Resident {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
        kib.unwrap_or(0) * 1024
    };
    Resident { total: field("VmRSS").max(field("VmHWM")), anon: field("RssAnon") }
}

/// What the program says of itself, update by update.
fn reports(out: &str) -> Result<Measured> {
    let fault = |line: &str| Failure::new(format!("a report that is not understood: {line}"));
    let (mut measured, mut seconds) = (Measured::default(), Vec::new());
    for line in out.lines() {
        let report: Value = serde_json::from_str(line).map_err(|_| fault(line))?;
        let bytes = |key: &str| report[key].as_u64().map(|bytes| bytes as usize).ok_or_else(|| fault(line));
        let (total, anon) = (bytes("peak_rss_bytes")?, bytes("peak_anon_bytes")?);
        measured.peak = Resident { total: measured.peak.total.max(total), anon: measured.peak.anon.max(anon) };
        measured.planned = bytes("planned_peak_bytes")?;
        seconds.push(1.0 / report["iters_per_second"].as_f64().ok_or_else(|| fault(line))?);
    }
    seconds.sort_by(f64::total_cmp);
    measured.seconds_a_step = *seconds.get(seconds.len() / 2).ok_or_else(|| Failure::new("it reported nothing"))?;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script in the program's place.
    fn script(text: &str) -> Result<Measured> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        run(command, folder.path())
    }

    fn report(iters_per_second: f64) -> String {
        format!(
            r#"echo '{{"peak_rss_bytes":9000000000,"peak_anon_bytes":7,"planned_peak_bytes":10,"iters_per_second":{iters_per_second}}}'"#
        )
    }

    #[test]
    fn peaks_are_the_higher_of_what_is_seen_and_what_is_said() {
        let measured = script(&format!("{}; sleep 0.1", report(4.0))).unwrap();
        assert_eq!((measured.peak.total, measured.planned), (9_000_000_000, 10), "said");
        assert!(measured.peak.anon > 4096, "seen: {:?}", measured.peak);
    }

    #[test]
    fn the_time_of_a_step_is_the_median() {
        let measured = script(&[report(0.1), report(4.0), report(5.0)].join(";")).unwrap();
        assert_eq!(measured.seconds_a_step, 0.25);
    }

    #[test]
    fn a_run_that_fails_gives_its_own_last_line() {
        let failed = script("echo first >&2; echo 'error: no such model' >&2; exit 1").unwrap_err();
        assert_eq!(failed.to_string(), "error: no such model");
        assert_eq!(script("true").unwrap_err().to_string(), "it reported nothing");
    }

    #[test]
    fn the_total_is_the_high_water_mark() {
        let status = "Name:\tx\nVmHWM:\t    3000 kB\nVmRSS:\t    2000 kB\nRssAnon:\t     500 kB\n";
        assert_eq!(figures(status), Resident { total: 3000 * 1024, anon: 500 * 1024 });
    }
}
