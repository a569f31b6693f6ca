//! What Linux says of a process: the CPU time of its threads, and the most memory it held.

use std::time::Duration;

use crate::failure::{Failure, Result};

/// User and system time of all threads that a process has now. Those of a pool live as long as it, so a difference of two looks is the
/// time between them.
///
/// # Errors
/// When the process is gone, or the kernel keeps no such figures.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    pocketune::threads::cpu_time(pid).ok_or_else(|| Failure::new(format!("/proc/{pid}/task: no figures")))
}

/// The high-water mark of a process's resident memory, in bytes.
///
/// # Errors
/// When the process is gone, or the system doesn't tell.
pub fn peak_rss(pid: u32) -> Result<u64> {
    let place = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&place).map_err(|error| Failure::io(&place, error))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Failure::new(format!("{place}: no VmHWM")))
}

/// How many threads wanted to run over the last minute, on average; `None` where the system doesn't tell.
pub fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The processor that figures are from, in words.
pub fn processor() -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown processor");
    format!("{}, {threads} threads", model.trim_start_matches([' ', '\t', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spent_computing_shows_and_time_spent_waiting_does_not() {
        let me = std::process::id();
        let before = cpu_time(me).unwrap();
        let start = std::time::Instant::now();
        let mut x = 1_u64;
        while start.elapsed() < Duration::from_millis(300) {
            x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
        let busy = cpu_time(me).unwrap() - before;
        assert!(busy > Duration::from_millis(20), "{busy:?}");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let before = cpu_time(child.id()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let waited = cpu_time(child.id()).unwrap() - before;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(waited < Duration::from_millis(100), "{waited:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(cpu_time(u32::MAX).is_err());
        assert!(peak_rss(u32::MAX).is_err());
    }
}
