//! The planner's profile: what `pocketune bench` found on this machine, kept in a small JSON file. An entry holds for one processor,
//! instruction set, precision, number of threads and version of pocketune; others are left alone and never used. A file that is none
//! of ours is said to be so and replaced only by the next `bench`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::storage::{Files, Storage};
use super::write_file;
use crate::error::{Error, Result};
use crate::plan::{Machine, Rates};

/// No profile is larger.
const LIMIT: u64 = 1 << 20;

#[derive(Default, Serialize, Deserialize)]
struct Profiles {
    profiles: Vec<Profile>,
}

#[derive(Serialize, Deserialize)]
struct Profile {
    #[serde(flatten)]
    key: Key,
    rates: Rates,
}

/// What a profile holds for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    processor: String,
    isa: String,
    precision: String,
    threads: usize,
    version: String,
}

impl Key {
    fn of(machine: Machine) -> Self {
        Self {
            processor: processor(),
            isa: machine.isa.name().into(),
            precision: format!("{:?}", machine.precision).to_lowercase(),
            threads: machine.threads,
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

/// What the system calls this processor; on Arm, the numbers of its maker and part.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches([' ', '\t', ':']).to_string())
    };
    let arm = || Some(format!("Arm implementer {} part {}", field("CPU implementer")?, field("CPU part")?));
    field("model name").or_else(arm).unwrap_or_else(|| "an unknown processor".into())
}

/// What the profile in `path` says of `machine`; `None` where there is no file.
///
/// # Errors
/// When the file is no profile, or has none of this machine.
pub fn find_profile(path: &Path, machine: Machine) -> Result<Option<Rates>> {
    let Some(profiles) = read(path)? else { return Ok(None) };
    let key = Key::of(machine);
    match profiles.profiles.iter().find(|profile| profile.key == key) {
        Some(profile) => Ok(Some(profile.rates)),
        None => Err(fault(
            path,
            format!(
                "no profile of this processor with {} in {}, {} threads, pocketune {}",
                key.isa, key.precision, key.threads, key.version
            ),
        )),
    }
}

/// Keeps `rates` as the profile of `machine`, in place of an earlier one.
///
/// # Errors
/// The system's; what was there stays then.
pub fn keep_profile(path: &Path, machine: Machine, rates: Rates) -> Result<()> {
    let key = Key::of(machine);
    // A file that can't be understood holds nothing worth keeping.
    let mut profiles = read(path).ok().flatten().unwrap_or_default();
    profiles.profiles.retain(|profile| profile.key != key);
    profiles.profiles.push(Profile { key, rates });
    if let Some(folder) = path.parent() {
        Files.make_folder(folder).map_err(|error| Error::io(folder, error))?;
    }
    let text = serde_json::to_string_pretty(&profiles).map_err(|error| fault(path, error.to_string()))?;
    write_file(path, format!("{text}\n").as_bytes())
}

fn read(path: &Path) -> Result<Option<Profiles>> {
    // Only a plain file is opened: a pipe in its place would be waited for.
    match std::fs::metadata(path) {
        Ok(there) if there.is_file() => {}
        Ok(_) => return Err(fault(path, "this is no file".into())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, error)),
    }
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    let mut text = String::new();
    file.take(LIMIT).read_to_string(&mut text).map_err(|error| Error::io(path, error))?;
    let profiles: Profiles =
        serde_json::from_str(&text).map_err(|error| fault(path, format!("this is no profile: {error}")))?;
    if profiles.profiles.iter().any(|profile| !profile.rates.plausible()) {
        return Err(fault(path, "a rate in this profile is not above zero".into()));
    }
    Ok(Some(profiles))
}

fn fault(path: &Path, fault: String) -> Error {
    Error::System(format!("{}: {fault}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pocketune_kernels::Isa;
    use pocketune_kernels::matmul::Precision;

    fn machine(threads: usize) -> Machine {
        Machine { threads, isa: Isa::Scalar, precision: Precision::F32 }
    }

    #[test]
    fn what_was_kept_is_found_again_by_the_same_machine_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache/pocketune/profile.json");
        assert_eq!(find_profile(&path, machine(1)).unwrap(), None);
        let rates = |product| Rates { product, ..Rates::TYPICAL };
        keep_profile(&path, machine(1), rates(1.5e11)).unwrap();
        keep_profile(&path, machine(2), rates(3e11)).unwrap();
        keep_profile(&path, machine(1), rates(2e11)).unwrap();
        assert_eq!(find_profile(&path, machine(1)).unwrap(), Some(rates(2e11)));
        assert_eq!(find_profile(&path, machine(2)).unwrap(), Some(rates(3e11)));
        assert!(find_profile(&path, machine(3)).unwrap_err().to_string().contains("3 threads"));
        let other = Machine { precision: Precision::Bf16, ..machine(1) };
        assert!(find_profile(&path, other).is_err());
        let foreign = std::fs::read_to_string(&path).unwrap().replace(env!("CARGO_PKG_VERSION"), "0.0.1");
        std::fs::write(&path, foreign).unwrap();
        assert!(find_profile(&path, machine(1)).is_err(), "of another version");
    }

    #[test]
    fn what_is_no_profile_is_refused_and_the_next_one_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.json");
        keep_profile(&path, machine(1), Rates::TYPICAL).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        let zero = good.replacen("\"product\": 100000000000.0", "\"product\": 0.0", 1);
        assert_ne!(good, zero);
        for bad in ["", "{", "[]", "{\"profiles\": 3}", "\u{0}\u{1}", &zero] {
            std::fs::write(&path, bad).unwrap();
            let fault = find_profile(&path, machine(1)).unwrap_err().to_string();
            assert!(fault.contains("profile") && !fault.contains('\n'), "{fault}");
        }
        keep_profile(&path, machine(1), Rates::TYPICAL).unwrap();
        assert_eq!(find_profile(&path, machine(1)).unwrap(), Some(Rates::TYPICAL));
        assert!(find_profile(folder.path(), machine(1)).is_err(), "a folder");
    }
}
