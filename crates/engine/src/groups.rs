//! The control groups that this process is in: they limit it besides the machine.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Which version of control groups a folder is of: its files have other names.
#[derive(Clone, Copy)]
pub(crate) enum Version {
    One,
    Two,
}

/// The folders of this process's own group and of all groups around it, of each hierarchy that may limit what `controller` counts, in a system
/// whose files are under `root`.
pub(crate) fn around(root: &Path, controller: &str) -> Vec<(Version, PathBuf)> {
    // Where the system doesn't tell, the top of a hierarchy is looked at: inside a container it is its own group.
    let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_else(|_| format!("0::/\n1:{controller}:/\n"));
    let mounted = root.join("sys/fs/cgroup");
    let mut folders = Vec::new();
    // Lines are `number:controllers:path`; version 2 has neither number nor controllers.
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (top, version) = if controllers.is_empty() {
            (mounted.clone(), Version::Two)
        } else if controllers.split(',').any(|one| one == controller) {
            let both = mounted.join(controllers);
            (if both.is_dir() { both } else { mounted.join(controller) }, Version::One)
        } else {
            continue;
        };
        // The group's own limit and those of all groups around it. Inside a container the path may be the host's, which isn't
        // there; its own group is then the top one.
        let group = top.join(path.trim_start_matches('/'));
        folders.extend(group.ancestors().take_while(|at| at.starts_with(&top)).map(|at| (version, at.into())));
    }
    folders
}
