//! What the process holds now and held at most, as the system counts it, without allocating.

use std::fs::read_to_string;
use std::io::Read;
use std::path::Path;

use crate::groups::{self, Version};

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Everything, mapped files included.
    pub total: usize,
    /// Memory of the process's own (`RssAnon`).
    pub anon: usize,
}

/// True peaks: the total from the system's own high-water mark, the anonymous part from every look taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peak {
    highest: Resident,
}

impl Peak {
    /// Looks again, and gives the peaks so far; zeros where the system doesn't tell.
    pub fn look(&mut self) -> Resident {
        let (now, high_water) = read();
        self.highest.total = self.highest.total.max(now.total).max(high_water);
        self.highest.anon = self.highest.anon.max(now.anon);
        self.highest
    }
}

/// What is resident now; zeros where the system doesn't tell.
pub fn now() -> Resident {
    read().0
}

/// Reads `/proc/self/status`: current figures and the high-water mark of the total.
fn read() -> (Resident, usize) {
    let mut text = [0; 4096];
    let Ok(mut file) = std::fs::File::open("/proc/self/status") else { return Default::default() };
    let len = file.read(&mut text).unwrap_or(0);
    let field = |name: &[u8]| {
        let line = text[..len].split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name));
        let digits = line.unwrap_or_default().iter().filter(|byte| byte.is_ascii_digit());
        digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')) * 1024
    };
    (Resident { total: field(b"VmRSS:"), anon: field(b"RssAnon:") }, field(b"VmHWM:"))
}

/// Gives back what freed allocations still hold.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: has no preconditions; it only returns free pages to the system.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The machine's memory in bytes, or the control group's where that is less.
#[derive(Clone, Copy, Debug)]
pub struct SystemMemory {
    /// All of it.
    pub total: usize,
    /// What can be had without swapping.
    pub available: usize,
}

/// What the system has; a quarter of the address space where it doesn't tell.
pub fn system() -> SystemMemory {
    let (total, available) = under(Path::new("/"));
    let unknown = usize::MAX / 4;
    SystemMemory { total: total.unwrap_or(unknown), available: available.unwrap_or(unknown) }
}

/// What can be had without swapping, of a system whose files are under `root`; `None` where it doesn't tell.
pub(crate) fn available_under(root: &Path) -> Option<usize> {
    under(root).1
}

/// All memory and what is available of it, each where the system tells: the machine's, or the least of any control group around this process.
fn under(root: &Path) -> (Option<usize>, Option<usize>) {
    let text = read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").trim().parse::<usize>().ok().map(|kib| kib * 1024)
    };
    let (mut total, mut available) = (field("MemTotal:"), field("MemAvailable:"));
    for (version, folder) in groups::around(root, "memory") {
        let Some((limit, room)) = room(version, &folder) else { continue };
        // (Without a limit, version 1 names one that no machine has.)
        total = Some(total.map_or(limit, |total| total.min(limit)));
        available = Some(available.map_or(room, |available| available.min(room)));
    }
    (total, available)
}

/// The limit of a control group and what is left of it, where it has one. As of the machine's memory, what the group holds of files can be had.
fn room(version: Version, folder: &Path) -> Option<(usize, usize)> {
    let (limits, used, files): (&[_], _, _) = match version {
        // Beyond the first of them the system slows the group down, beyond the second it kills.
        Version::Two => (&["memory.high", "memory.max"], "memory.current", ["inactive_file", "active_file"]),
        Version::One => {
            (&["memory.limit_in_bytes"], "memory.usage_in_bytes", ["total_inactive_file", "total_active_file"])
        }
    };
    let number = |file: &str| read_to_string(folder.join(file)).ok()?.trim().parse::<usize>().ok();
    let limit = limits.iter().filter_map(|file| number(file)).min()?;
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let of_files = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        if files.contains(&name) { bytes.parse::<usize>().ok() } else { None }
    });
    let held = number(used).unwrap_or(0).saturating_sub(of_files.sum());
    Some((limit, limit.saturating_sub(held)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// All memory and what is available on a machine of 1,000 MiB, 800 of which are, with these files.
    fn machine(files: &[(&str, String)]) -> (usize, usize) {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal: 1024000 kB\nMemAvailable:  819200 kB\n".to_owned());
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let (total, available) = under(root.path());
        (total.unwrap() / MIB, available.unwrap() / MIB)
    }

    fn bytes(mib: usize) -> String {
        format!("{}\n", mib * MIB)
    }

    #[test]
    fn a_group_without_a_limit_leaves_the_machines_memory() {
        assert_eq!(machine(&[]), (1000, 800));
        let groups = ("proc/self/cgroup", "0::/user.slice\n4:memory:/a\n".to_owned());
        let none = ("sys/fs/cgroup/user.slice/memory.max", "max\n".to_owned());
        let huge = ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n".to_owned());
        assert_eq!(machine(&[groups, none, huge]), (1000, 800));
    }

    #[test]
    fn the_tightest_of_nested_groups_counts_and_what_it_holds_of_files_can_be_had() {
        let groups = ("proc/self/cgroup", "0::/job/step\n".to_owned());
        let job = ("sys/fs/cgroup/job/memory.max", bytes(600));
        let held = ("sys/fs/cgroup/job/memory.current", bytes(400));
        let stat =
            ("sys/fs/cgroup/job/memory.stat", format!("file {0}\ninactive_file {0}\nactive_file {0}\n", 100 * MIB));
        let job = [groups, job, held, stat];
        assert_eq!(machine(&job), (600, 400));
        let step = ("sys/fs/cgroup/job/step/memory.max", bytes(300));
        let inner = [&job[..], &[step]].concat();
        assert_eq!(machine(&inner), (300, 300));
        // A group may have less left than its own limit says, because that around it has.
        let around = ("sys/fs/cgroup/job/memory.current", bytes(650));
        assert_eq!(machine(&[&inner[..], &[around]].concat()), (300, 150));
        // Where a group is slowed down counts as much as where it is killed.
        let high = ("sys/fs/cgroup/job/step/memory.high", bytes(200));
        assert_eq!(machine(&[&job[..], &[high]].concat()), (200, 200));
    }

    #[test]
    fn the_first_version_of_control_groups_is_read_too_on_a_host_and_in_a_container() {
        let groups = || ("proc/self/cgroup", "4:memory:/docker/1\n0::/\n".to_owned());
        for folder in ["memory/docker/1", "memory"] {
            let (limit, used, stat) = ["limit_in_bytes", "usage_in_bytes", "stat"]
                .map(|name| format!("sys/fs/cgroup/{folder}/memory.{name}"))
                .into();
            let files = format!("inactive_file 7\ntotal_inactive_file {}\ntotal_active_file 0\n", 30 * MIB);
            let group = [groups(), (limit.as_str(), bytes(250)), (used.as_str(), bytes(100)), (stat.as_str(), files)];
            assert_eq!(machine(&group), (250, 180), "{folder}");
            // Nothing says which group it is: the top one is looked at.
            if folder == "memory" {
                assert_eq!(machine(&group[1..]), (250, 180));
            }
        }
    }
}
