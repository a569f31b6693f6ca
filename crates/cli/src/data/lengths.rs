//! What all records of a data set come to: how many, how long, and how much of a batch's memory they fill.

use std::fmt::Write;

use pocketune_text::Example;

use crate::memory_bar::bar;

/// Lengths of examples, in tokens.
#[derive(Default)]
pub struct Lengths {
    all: Vec<u32>,
    tokens: u64,
    counted: u64,
    cut: usize,
    skipped: usize,
}

impl Lengths {
    pub fn add(&mut self, example: &Example) {
        let counted = example.loss.iter().filter(|&&on| on).count();
        self.cut += usize::from(example.cut_from.is_some());
        if counted == 0 {
            self.skipped += 1;
            return;
        }
        self.all.push(example.ids.len() as u32);
        self.tokens += example.ids.len() as u64;
        self.counted += counted as u64;
    }

    /// Figures and a histogram.
    pub fn text(mut self, batch: usize) -> String {
        self.all.sort_unstable();
        let records = self.all.len();
        let (Some(&shortest), Some(&longest)) = (self.all.first(), self.all.last()) else {
            return format!("0 records with something to predict, {} without\n", self.skipped);
        };
        let share = |part: f64, of: f64| 100.0 * part / of.max(1.0);
        let mean = self.tokens as f64 / records as f64;
        let mut text = format!(
            "{records} records, {} tokens, loss on {} of them ({:.1} %); {} cut, {} with nothing to predict\n\
             lengths {shortest} to {longest}, median {}, mean {mean:.1}\n",
            self.tokens,
            self.counted,
            share(self.counted as f64, self.tokens as f64),
            self.cut,
            self.skipped,
            self.all[records / 2]
        );
        for (from, to, count) in self.histogram() {
            // Writing to a string does not fail, here and below.
            let _ = writeln!(text, "  {:>13} {count:>8} {}", format!("{from} to {to}"), bar(count, records, 40));
        }
        let _ = writeln!(
            text,
            "a batch of {batch} has room for {} tokens and fills {:.1} % of it; nothing is padded. Padding to the longest of each batch \
             would compute {:.1} % for nothing.",
            batch * longest as usize,
            share(mean, f64::from(longest)),
            self.padded(batch)
        );
        text
    }

    /// Records by length, in ranges that double.
    fn histogram(&self) -> Vec<(u32, u32, usize)> {
        let (mut ranges, mut done, mut from) = (Vec::new(), 0, 1_u32);
        while done < self.all.len() {
            let to = from.saturating_mul(2) - 1;
            let below = self.all.partition_point(|&length| length <= to);
            if below > done || !ranges.is_empty() {
                ranges.push((from, to, below - done));
            }
            (done, from) = (below, to.saturating_add(1));
        }
        ranges
    }

    /// The share of padding, in hundredths, where records of any order are padded to the longest of their batch: lengths are taken in
    /// an order that is as good as random, every so many apart.
    fn padded(&self, batch: usize) -> f64 {
        let count = self.all.len();
        // A step that shares no factor with the count visits every record once.
        let step = (1..=count).rev().find(|&step| step <= count * 5 / 8 + 1 && coprime(step, count)).unwrap_or(1);
        let order: Vec<u32> = (0..count).map(|at| self.all[at * step % count]).collect();
        let room: u64 = order
            .chunks(batch.max(1))
            .map(|records| u64::from(records.iter().copied().max().unwrap_or(0)) * records.len() as u64)
            .sum();
        100.0 * (1.0 - self.tokens as f64 / room as f64)
    }
}

fn coprime(a: usize, b: usize) -> bool {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(all: &[usize]) -> Lengths {
        let mut lengths = Lengths::default();
        for &length in all {
            let loss = (0..length).map(|at| at > 0).collect();
            lengths.add(&Example { ids: vec![0; length], loss, cut_from: None });
        }
        lengths
    }

    #[test]
    fn every_record_is_in_one_range() {
        let mut some = lengths(&[1, 2, 3, 4, 100, 7]);
        some.all.sort_unstable();
        assert_eq!(some.skipped, 1);
        assert_eq!(some.histogram(), [(2, 3, 2), (4, 7, 2), (8, 15, 0), (16, 31, 0), (32, 63, 0), (64, 127, 1)]);
    }

    #[test]
    fn equal_lengths_need_no_padding() {
        assert_eq!(lengths(&[9; 12]).padded(4), 0.0);
        assert!((lengths(&[10, 30]).padded(2) - 100.0 / 3.0).abs() < 1e-9);
        assert!(lengths(&[5, 5]).text(2).contains("fills 100.0 %"));
    }
}
