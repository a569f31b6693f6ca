//! What Linux says of the device: files of `/sys` and `/proc`, under a root that tests put elsewhere. A file that is missing or
//! says something else is a reading that isn't there; nothing here fails.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Readings, Source};
use crate::memory;

/// Sensors beyond this, or not above freezing, are broken or no thermometers.
const PLAUSIBLE: std::ops::Range<f32> = 0.1..130.0;

/// The files of a Linux system.
pub struct Linux {
    root: PathBuf,
}

impl Linux {
    /// This machine's.
    pub fn new() -> Self {
        Self::under(Path::new("/"))
    }

    /// Those under another root.
    pub fn under(root: &Path) -> Self {
        Self { root: root.into() }
    }

    fn text(&self, file: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(file)).ok().map(|text| text.trim().to_owned())
    }

    /// The folders of a class whose names begin so.
    fn devices(&self, class: &str, prefix: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join("sys/class").join(class)).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        named.map(|entry| entry.path()).collect()
    }

    /// Whether the device is fed from outside, and the least of its own batteries.
    fn power(&self) -> (Option<bool>, Option<u8>) {
        let (mut fed, mut discharging, mut battery) = (None, None, None);
        for supply in self.devices("power_supply", "") {
            let say = |name: &str| self.text(supply.join(name));
            // Batteries of mice and pens are supplies too.
            if say("scope").as_deref() == Some("Device") {
                continue;
            }
            match say("type").as_deref() {
                Some("Battery") => {
                    let left = say("capacity").and_then(|text| text.parse().ok()).filter(|&left: &u8| left <= 100);
                    battery = left.into_iter().chain(battery).min();
                    discharging = Some(discharging == Some(true) || say("status").as_deref() == Some("Discharging"));
                }
                Some("Mains" | "USB" | "Wireless") => {
                    fed = Some(fed == Some(true) || say("online").is_some_and(|text| text != "0"));
                }
                _ => {}
            }
        }
        (fed.or(discharging.map(|discharging| !discharging)), battery)
    }

    fn celsius(&self) -> Option<f32> {
        let zones = self.devices("thermal", "thermal_zone").into_iter();
        let sensors = zones.filter_map(|zone| self.text(zone.join("temp"))?.parse::<f32>().ok());
        sensors.map(|milli| milli / 1000.0).filter(|celsius| PLAUSIBLE.contains(celsius)).reduce(f32::max)
    }

    fn pressure(&self) -> Option<f32> {
        let text = self.text("proc/pressure/memory")?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        some.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for Linux {
    fn read(&mut self) -> Readings {
        let (on_power, battery) = self.power();
        Readings {
            on_power,
            battery,
            celsius: self.celsius(),
            available: memory::available_under(&self.root),
            own: memory::now().anon,
            pressure: self.pressure(),
            user_active: None,
            minute: local_minute(),
        }
    }
}

/// Minutes since midnight in the zone that the system is set to.
fn local_minute() -> Option<u16> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    let seconds = libc::time_t::try_from(now.as_secs()).ok()?;
    let mut parts = std::mem::MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are to values of the right types that outlive the call; it fills the second unless it answers null.
    let parts = unsafe {
        if libc::localtime_r(&seconds, parts.as_mut_ptr()).is_null() {
            return None;
        }
        parts.assume_init()
    };
    u16::try_from(parts.tm_hour * 60 + parts.tm_min).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Readings {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        Linux::under(root.path()).read()
    }

    #[test]
    fn a_laptop_is_read() {
        let now = read(&[
            ("sys/class/power_supply/AC/type", "Mains"),
            ("sys/class/power_supply/AC/online", "0"),
            ("sys/class/power_supply/BAT0/type", "Battery"),
            ("sys/class/power_supply/BAT0/capacity", "63"),
            ("sys/class/power_supply/BAT0/status", "Discharging"),
            ("sys/class/power_supply/BAT1/type", "Battery"),
            ("sys/class/power_supply/BAT1/capacity", "80"),
            ("sys/class/power_supply/mouse/type", "Battery"),
            ("sys/class/power_supply/mouse/scope", "Device"),
            ("sys/class/power_supply/mouse/capacity", "3"),
            ("sys/class/thermal/thermal_zone0/temp", "45000"),
            ("sys/class/thermal/thermal_zone1/temp", "71500"),
            ("sys/class/thermal/thermal_zone2/temp", "-274000"),
            ("sys/class/thermal/thermal_zone3/temp", "200000"),
            ("sys/class/thermal/cooling_device0/temp", "99000"),
            (
                "proc/pressure/memory",
                "some avg10=12.50 avg60=1.00 avg300=0.10 total=9\nfull avg10=3.00 avg60=0 avg300=0 total=1",
            ),
            ("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable:    8000000 kB"),
        ]);
        assert_eq!((now.on_power, now.battery, now.celsius), (Some(false), Some(63), Some(71.5)));
        assert_eq!((now.pressure, now.available), (Some(12.5), Some(8_000_000 * 1024)));
        assert!(now.minute.is_some_and(|minute| minute < 24 * 60));
    }

    #[test]
    fn a_battery_alone_says_whether_it_is_fed() {
        let status = |status| {
            read(&[("sys/class/power_supply/BAT/type", "Battery"), ("sys/class/power_supply/BAT/status", status)])
                .on_power
        };
        assert_eq!((status("Charging"), status("Full"), status("Discharging")), (Some(true), Some(true), Some(false)));
    }

    #[test]
    fn a_device_without_these_files_or_with_nonsense_in_them_says_nothing() {
        let nothing = Readings { own: 0, minute: None, ..Readings::default() };
        let bare = |now: Readings| Readings { own: 0, minute: None, ..now };
        assert_eq!(bare(read(&[])), nothing);
        let nonsense = read(&[
            ("sys/class/power_supply/BAT/type", "\u{1}"),
            ("sys/class/power_supply/BAT/capacity", "1e9"),
            ("sys/class/thermal/thermal_zone0/temp", "hot"),
            ("proc/pressure/memory", "some avg10=x"),
            ("proc/meminfo", "MemAvailable: lots"),
        ]);
        assert_eq!(bare(nonsense), nothing);
    }
}
