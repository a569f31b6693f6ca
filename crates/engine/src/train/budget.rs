//! The memory budget: what a user names, what the system has, and the words for when neither is enough.

use crate::error::{Error, Result};
use crate::memory;

/// A budget for the whole process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// What the system has available now, less a margin.
    Available,
    /// So many bytes.
    Bytes(usize),
    /// A share of the machine's memory.
    Share(f64),
    /// As little as possible.
    Smallest,
}

/// What is left of the available memory for others.
const MARGIN: f64 = 0.1;

impl Budget {
    /// Reads `512MiB`, `1.5GB`, `50%`, plain bytes, or `min`.
    ///
    /// # Errors
    /// When it is none of these, or not above zero.
    pub fn parse(text: &str) -> Result<Self> {
        let fault = |fault: &str| Error::Option { option: "memory-budget", value: text.into(), fault: fault.into() };
        let word = text.trim();
        if word.eq_ignore_ascii_case("min") {
            return Ok(Budget::Smallest);
        }
        let split = word.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-')).unwrap_or(word.len());
        let (number, unit) = word.split_at(split);
        let number: f64 = number.parse().map_err(|_| fault("a size such as 512MiB, 1.5GB or 50%, or min"))?;
        if !(number > 0.0 && number.is_finite()) {
            return Err(fault("a budget is above 0"));
        }
        let factor = match unit.trim().to_ascii_lowercase().as_str() {
            "%" if number <= 100.0 => return Ok(Budget::Share(number / 100.0)),
            "%" => return Err(fault("more than the machine has")),
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "kib" => 1024.0,
            "mib" => 1_048_576.0,
            "gib" => 1_073_741_824.0,
            _ => return Err(fault("a size such as 512MiB, 1.5GB or 50%, or min")),
        };
        Ok(Budget::Bytes((number * factor) as usize))
    }

    /// The budget in bytes; `None` for as little as possible.
    ///
    /// # Errors
    /// When it is more than the machine has.
    pub fn bytes(self) -> Result<Option<usize>> {
        let system = memory::system();
        match self {
            Budget::Smallest => Ok(None),
            Budget::Available => Ok(Some((system.available as f64 * (1.0 - MARGIN)) as usize)),
            Budget::Share(share) => Ok(Some((system.total as f64 * share) as usize)),
            Budget::Bytes(bytes) if bytes > system.total => {
                let fault = format!("this machine has {} bytes in all", system.total);
                Err(Error::Option { option: "memory-budget", value: bytes.to_string(), fault })
            }
            Budget::Bytes(bytes) => Ok(Some(bytes)),
        }
    }

    /// Where the figure comes from, for reports.
    pub const fn origin(self) -> &'static str {
        match self {
            Budget::Available => "available now, less a tenth",
            Budget::Bytes(_) => "as asked",
            Budget::Share(_) => "as asked, of this machine",
            Budget::Smallest => "as little as possible",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_both_systems_of_units() {
        let bytes = |text| Budget::parse(text).unwrap();
        assert_eq!(bytes("512MiB"), Budget::Bytes(512 << 20));
        assert_eq!(bytes("1.5GB"), Budget::Bytes(1_500_000_000));
        assert_eq!(bytes("1.5 gb"), Budget::Bytes(1_500_000_000));
        assert_eq!(bytes("4096"), Budget::Bytes(4096));
        assert_eq!(bytes("50%"), Budget::Share(0.5));
        assert_eq!(bytes("min"), Budget::Smallest);
    }

    #[test]
    fn nonsense_is_refused_with_what_was_typed() {
        for text in ["0", "-1", "12 bananas", "", "MiB", "1e999GB", "nanMB", "200%", "-5%"] {
            let message = Budget::parse(text).unwrap_err().to_string();
            assert!(message.starts_with(&format!("--memory-budget {text}: ")), "{message}");
        }
        assert!(Budget::Bytes(usize::MAX).bytes().unwrap_err().to_string().contains("this machine has"));
    }
}
