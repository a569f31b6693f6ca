//! What the process holds now and held at most, as the system counts it, without allocating.

use std::io::Read;
use std::path::Path;

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

/// All memory and what is available of it, each where the system tells.
fn under(root: &Path) -> (Option<usize>, Option<usize>) {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").trim().parse::<usize>().ok().map(|kib| kib * 1024)
    };
    let (mut total, mut available) = (field("MemTotal:"), field("MemAvailable:"));
    let number = |path: &str| std::fs::read_to_string(root.join(path)).ok()?.trim().parse::<usize>().ok();
    let groups = [
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ];
    for (limit, used) in groups {
        if let Some(limit) = number(limit).filter(|&limit| total.is_none_or(|total| limit < total)) {
            let room = limit.saturating_sub(number(used).unwrap_or(0));
            (total, available) = (Some(limit), Some(available.map_or(room, |available| available.min(room))));
        }
    }
    (total, available)
}
