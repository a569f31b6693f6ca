//! How a run is kept: when its state goes to disk, where an earlier one is taken up, and when it ends by itself.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};

/// Which earlier run is gone on with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// None; one that waits in the adapter's folder is not overwritten.
    #[default]
    Never,
    /// The one in the adapter's folder, where one waits there.
    Auto,
    /// The one in this folder.
    From(PathBuf),
}

/// How often the state of a run goes to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// After so many updates.
    Updates(usize),
    /// After so much time, at the end of the update.
    Time(Duration),
}

/// When the state of a run goes to disk and comes back.
#[derive(Clone, Debug)]
pub struct Keeping {
    /// Which earlier run is gone on with.
    pub resume: Resume,
    /// Whether options may differ from those of the earlier run.
    pub allow_changed: bool,
    /// How often the state goes to disk.
    pub every: Every,
    /// How soon after it is asked to stop the run should have its state on disk.
    pub within: Duration,
    /// After so much time the run stops, to be gone on with later.
    pub time_limit: Option<Duration>,
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            resume: Resume::Never,
            allow_changed: false,
            every: Every::Time(Duration::from_secs(60)),
            within: Duration::from_secs(1),
            time_limit: None,
        }
    }
}

impl Every {
    /// Reads `20` (updates) or a time such as `30s`.
    ///
    /// # Errors
    /// When it is neither, or zero.
    pub fn parse(option: &'static str, text: &str) -> Result<Self> {
        match text.trim().parse::<usize>() {
            Ok(updates @ 1..) => Ok(Every::Updates(updates)),
            _ => parse_time(option, text).map(Every::Time),
        }
    }
}

/// Reads `500ms`, `30s`, `20m`, `1.5h`.
///
/// # Errors
/// When it is no such time, or zero.
pub fn parse_time(option: &'static str, text: &str) -> Result<Duration> {
    let fault = || Error::Option { option, value: text.into(), fault: "a time such as 30s, 20m or 1.5h".into() };
    let word = text.trim();
    let split = word.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(fault)?;
    let (number, unit) = word.split_at(split);
    let number: f64 = number.parse().map_err(|_| fault())?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(fault()),
    };
    // A hundred years are enough for anything.
    if seconds > 0.0 && seconds < 3.2e9 { Ok(Duration::from_secs_f64(seconds)) } else { Err(fault()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_and_times_are_read() {
        let every = |text| Every::parse("commit-every", text).unwrap();
        assert_eq!(every("20"), Every::Updates(20));
        assert_eq!(every("30s"), Every::Time(Duration::from_secs(30)));
        assert_eq!(every("500ms"), Every::Time(Duration::from_millis(500)));
        assert_eq!(parse_time("time-limit", "1.5h").unwrap(), Duration::from_secs(5400));
    }

    #[test]
    fn nonsense_is_refused_with_what_was_typed() {
        for text in ["", "0", "0s", "-1s", "s", "5 bananas", "1e99s", "nan", "99999999999h", "1.2.3s"] {
            let message = Every::parse("commit-every", text).unwrap_err().to_string();
            assert!(message.starts_with(&format!("--commit-every {text}: ")), "{message}");
        }
        assert!(parse_time("time-limit", "20").is_err(), "a number of what?");
    }
}
