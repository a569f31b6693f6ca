//! Lines of a data file that are no records: all are counted, the first are named.

/// Lines that are named.
const NAMED: usize = 20;

/// Bad lines of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadLines {
    /// The first of them, with what is wrong.
    pub first: Vec<(u64, String)>,
    /// How many there are.
    pub count: usize,
}

impl BadLines {
    /// Takes note of one.
    pub fn add(&mut self, line: u64, reason: String) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push((line, reason));
        }
    }
}

impl std::fmt::Display for BadLines {
    /// In one line: the only one, or the first of so many.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.first[..], self.count) {
            ([], _) => write!(out, "no bad line"),
            ([(line, reason), ..], 1) => write!(out, "line {line}: {reason}"),
            ([(line, reason), ..], count) => write!(out, "{count} bad lines, the first of them line {line}: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_named() {
        let mut bad = BadLines::default();
        bad.add(3, "one".into());
        assert_eq!(bad.to_string(), "line 3: one");
        (4..40).for_each(|line| bad.add(line, "more".into()));
        assert_eq!((bad.count, bad.first.len()), (37, NAMED));
        assert_eq!(bad.to_string(), "37 bad lines, the first of them line 3: one");
    }
}
