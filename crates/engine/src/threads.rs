//! How many threads to use when nobody says: as many as there are big cores that this process may run on, and no more than a
//! container's quota of CPU time pays for. A little core holds up the others at the end of every product, and a thread beyond the
//! quota makes all of them wait for the next period. The second hardware thread of a core is left alone: products keep the core's
//! multipliers busy from one, and two would share its caches, which tiles are cut for.
//!
//! Linux tells all of it in files below `/proc` and `/sys`; elsewhere the standard library's number stands.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::groups::{self, Version};

/// The default number of threads, 1 at least.
pub fn default() -> usize {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    all.min(usable(Path::new("/")).unwrap_or(all))
}

/// User and system time of all threads that a process has now; `None` where it is gone, or the system doesn't tell. Threads of a pool live as long
/// as it, so a difference of two looks is the time between them.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread may end between the listing and the look.
        let Ok(stat) = read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        nanos += stat.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}

/// What the files below `root` allow; `None` where they don't say which processors there are.
fn usable(root: &Path) -> Option<usize> {
    let status = read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = cpus(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)?;
    let folder = root.join("sys/devices/system/cpu");
    // The mask may name processors that are switched off, or were never there.
    let online = read_to_string(folder.join("online")).ok().and_then(|list| cpus(&list));
    let here = |cpu: &usize| online.as_ref().is_none_or(|online| online.contains(cpu));
    let allowed: Vec<usize> = allowed.into_iter().filter(here).collect();
    let threads = big(&folder, &one_per_core(&folder, &allowed)).min(quota(root).unwrap_or(usize::MAX));
    Some(threads.max(1))
}

/// A list such as `0-3,6`, or `None` if it is no such list.
fn cpus(list: &str) -> Option<Vec<usize>> {
    /// More than any machine has: the kernel's own limit is 8,192.
    const MOST: usize = 65_536;
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend((last < MOST).then_some(first..=last)?);
    }
    Some(cpus)
}

/// The first of `cpus` on each core; all of them where it is not known which share one.
fn one_per_core(folder: &Path, cpus: &[usize]) -> Vec<usize> {
    let first = |cpu: &usize| {
        let topology = folder.join(format!("cpu{cpu}/topology"));
        // The second name is that of kernels before 5.3.
        let list =
            ["core_cpus_list", "thread_siblings_list"].iter().find_map(|file| read_to_string(topology.join(file)).ok());
        let core = list.and_then(|list| self::cpus(&list)).unwrap_or_default();
        !cpus.iter().any(|other| other < cpu && core.contains(other))
    };
    cpus.iter().copied().filter(first).collect()
}

/// How many of `cpus` are big: at least half as capable as the best of them or, where the kernel gives no capacity, with at least
/// seven tenths of its highest clock. All of them where neither is known.
fn big(folder: &Path, cpus: &[usize]) -> usize {
    for (file, tenths) in [("cpu_capacity", 5), ("cpufreq/cpuinfo_max_freq", 7)] {
        let of = |cpu: &usize| number(&folder.join(format!("cpu{cpu}")).join(file));
        let known: Option<Vec<u64>> = cpus.iter().map(of).collect();
        if let Some(known) = known {
            let best = known.iter().copied().max().unwrap_or(0);
            return known.iter().filter(|&&cpu| cpu.saturating_mul(10) >= best.saturating_mul(tenths)).count();
        }
    }
    cpus.len()
}

/// The number that a file holds.
fn number(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// Whole processors that the control groups around this process pay for, the tightest of them.
fn quota(root: &Path) -> Option<usize> {
    let paid = |(version, folder): (Version, PathBuf)| match version {
        Version::Two => version_2(&folder),
        Version::One => version_1(&folder),
    };
    groups::around(root, "cpu").into_iter().filter_map(paid).min()
}

/// `cpu.max`: microseconds in a period, or `max`, then the period.
fn version_2(folder: &Path) -> Option<usize> {
    let text = read_to_string(folder.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    let (time, period): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    whole(time, period)
}

/// `cpu.cfs_quota_us`, negative for none, and `cpu.cfs_period_us`.
fn version_1(folder: &Path) -> Option<usize> {
    whole(number(&folder.join("cpu.cfs_quota_us"))?, number(&folder.join("cpu.cfs_period_us"))?)
}

fn whole(time: u64, period: u64) -> Option<usize> {
    Some(time.checked_div(period)?.max(1) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that looks like the root of a Linux machine.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn threads(files: &[(&str, &str)]) -> Option<usize> {
        usable(machine(files).path())
    }

    /// A phone: four little cores, three middle ones and a big one.
    fn phone(file: &str, values: [u32; 3], allowed: &str) -> Option<usize> {
        let per_cpu = (0..8).map(|cpu| {
            let value = values[usize::from(cpu > 3) + usize::from(cpu > 6)];
            (format!("sys/devices/system/cpu/cpu{cpu}/{file}"), format!("{value}\n"))
        });
        let mut files: Vec<(String, String)> = per_cpu.collect();
        files.push(("sys/devices/system/cpu/online".into(), "0-7\n".into()));
        files.push(("proc/self/status".into(), format!("Name:\tx\nCpus_allowed_list:\t{allowed}\n")));
        threads(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
    }

    #[test]
    fn a_phone_uses_its_big_cores_only() {
        assert_eq!(phone("cpu_capacity", [325, 828, 1024], "0-7"), Some(4));
        assert_eq!(phone("cpufreq/cpuinfo_max_freq", [1_804_800, 2_419_200, 2_841_600], "0-7"), Some(4));
    }

    #[test]
    fn cores_are_compared_with_the_best_that_the_process_may_use() {
        assert_eq!(phone("cpu_capacity", [325, 828, 1024], "0-3"), Some(4));
        assert_eq!(phone("cpu_capacity", [325, 828, 1024], "2-5"), Some(2));
        assert_eq!(phone("cpu_capacity", [325, 828, 1024], "7"), Some(1));
    }

    #[test]
    fn equal_cores_are_all_used_and_those_that_are_off_are_not() {
        let status = ("proc/self/status", "Cpus_allowed_list:\t0-3,6-127\n");
        assert_eq!(threads(&[status, ("sys/devices/system/cpu/online", "0-1,3,6\n")]), Some(4));
        assert_eq!(phone("cpu_capacity", [1024, 1024, 1024], "0-7"), Some(8));
        // A laptop with slower cores that still do most of a fast one's work.
        assert_eq!(phone("cpufreq/cpuinfo_max_freq", [3_800_000, 5_000_000, 5_100_000], "0-7"), Some(8));
    }

    #[test]
    fn a_core_with_two_hardware_threads_counts_once() {
        // Two fast cores of two threads each, numbered as Linux does either way, and two slower cores of one.
        let machine = |lists: [&str; 6], file: &str, allowed: &str| {
            let mut files = vec![("proc/self/status".to_owned(), format!("Cpus_allowed_list:\t{allowed}\n"))];
            for (cpu, list) in lists.iter().enumerate() {
                files.push((format!("sys/devices/system/cpu/cpu{cpu}/topology/{file}"), format!("{list}\n")));
            }
            threads(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
        };
        for lists in [["0-1", "0-1", "2-3", "2-3", "4", "5"], ["0,2", "1,3", "0,2", "1,3", "4", "5"]] {
            for file in ["core_cpus_list", "thread_siblings_list"] {
                assert_eq!(machine(lists, file, "0-5"), Some(4), "{lists:?}");
            }
        }
        let apart = ["0,2", "1,3", "0,2", "1,3", "4", "5"];
        // A process that may run on the second threads alone has as many cores.
        assert_eq!(machine(apart, "core_cpus_list", "2-3"), Some(2));
        assert_eq!(machine(apart, "core_cpus_list", "0,2"), Some(1));
        assert_eq!(machine(["nonsense"; 6], "core_cpus_list", "0-5"), Some(6));
    }

    #[test]
    fn a_quota_limits_the_threads_to_the_processors_it_pays_for() {
        let status = ("proc/self/status", "Cpus_allowed_list:\t0-15\n");
        let v2 = |max: &str| {
            threads(&[status, ("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/cpu.max", max)]).unwrap()
        };
        assert_eq!(v2("400000 100000\n"), 4);
        assert_eq!(v2("350000 100000\n"), 3);
        assert_eq!(v2("50000 100000\n"), 1);
        assert_eq!(v2("max 100000\n"), 16);
        assert_eq!(v2("7 0\n"), 16);
        assert_eq!(v2("nonsense\n"), 16);
        let own = [status, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", "200000 100000\n")];
        assert_eq!(threads(&own), Some(2));
    }

    #[test]
    fn the_tightest_of_nested_quotas_counts() {
        let files = [
            ("proc/self/status", "Cpus_allowed_list:\t0-15\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/cpu.max", "300000 100000\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "800000 100000\n"),
        ];
        assert_eq!(threads(&files), Some(3));
    }

    #[test]
    fn the_first_version_of_control_groups_is_read_too_on_a_host_and_in_a_container() {
        let status = ("proc/self/status", "Cpus_allowed_list:\t0-15\n");
        let groups = ("proc/self/cgroup", "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/\n");
        for folder in ["cpu,cpuacct/docker/1", "cpu,cpuacct", "cpu", "cpu/docker/1"] {
            let quota = format!("sys/fs/cgroup/{folder}/cpu.cfs_quota_us");
            let period = format!("sys/fs/cgroup/{folder}/cpu.cfs_period_us");
            let with = |time: &str| threads(&[status, groups, (&quota, time), (&period, "100000\n")]);
            assert_eq!(with("250000\n"), Some(2), "{folder}");
            assert_eq!(with("-1\n"), Some(16), "{folder}");
        }
    }

    #[test]
    fn a_machine_that_tells_nothing_is_no_fault() {
        assert_eq!(threads(&[]), None);
        assert_eq!(threads(&[("proc/self/status", "Cpus_allowed_list:\tnonsense\n")]), None);
        assert_eq!(threads(&[("proc/self/status", "Cpus_allowed_list:\t0-99999999999\n")]), None);
        assert!(default() >= 1);
    }
}
