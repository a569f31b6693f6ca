//! Batches: records in an order that depends on the seed and the epoch alone, as rows without padding.

use pocketune_kernels::attention::Segment;
use pocketune_kernels::philox::Philox;
use pocketune_text::Cloze;

use crate::backend::{Batch, Group, MOST_DIRECTIONS, NO_LABEL, Noise};
use crate::error::Result;
use crate::store::{TokenFile, token};

/// The rows of a batch, in memory that is taken once.
pub struct Rows {
    ids: Vec<u32>,
    positions: Vec<u32>,
    labels: Vec<u32>,
    segments: Vec<Segment>,
    groups: Vec<Group>,
    /// A record as it comes from the token file.
    words: Vec<u32>,
    /// How targets are predicted where there is no next token: masked, and among these words.
    cloze: Option<Cloze>,
}

impl Rows {
    /// Room for `records` records of `tokens` tokens together, none of them of more than `length`.
    pub fn with_capacity(records: usize, tokens: usize, length: usize) -> Self {
        Self {
            ids: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            labels: Vec::with_capacity(tokens),
            segments: Vec::with_capacity(records),
            groups: Vec::with_capacity(MOST_DIRECTIONS + 1),
            words: vec![0; length],
            cloze: None,
        }
    }

    /// The same with targets that are masked, where there is a `cloze`, and not the next token.
    pub fn with_cloze(self, cloze: Option<Cloze>) -> Self {
        Self { cloze, ..self }
    }

    /// Replaces the rows by the given records of `file`.
    ///
    /// # Errors
    /// The system's.
    pub fn fill(&mut self, file: &TokenFile, mut records: impl Iterator<Item = usize>) -> Result<()> {
        self.clear();
        records.try_for_each(|record| self.push(file, record))
    }

    /// Replaces the rows by records of groups, every record once for each group and those of a group one after another, beginning with
    /// number `first` of them and going on while `room` tokens hold them. The result is the number that comes next.
    ///
    /// # Errors
    /// The system's.
    pub fn fill_groups(
        &mut self,
        file: &TokenFile,
        records: &[u32],
        groups: usize,
        first: usize,
        room: usize,
    ) -> Result<usize> {
        self.clear();
        let mut next = first;
        while next < records.len() * groups {
            let (group, record) = (next / records.len(), records[next % records.len()] as usize);
            if next > first && self.ids.len() + file.length(record) > room {
                break;
            }
            self.push(file, record)?;
            let end = self.ids.len();
            match self.groups.last_mut() {
                Some(last) if last.number == group => last.end = end,
                _ => self.groups.push(Group { end, number: group }),
            }
            next += 1;
        }
        Ok(next)
    }

    fn clear(&mut self) {
        self.ids.clear();
        self.positions.clear();
        self.labels.clear();
        self.segments.clear();
        self.groups.clear();
    }

    /// Adds the rows of a record.
    fn push(&mut self, file: &TokenFile, record: usize) -> Result<()> {
        let words = file.read(record, &mut self.words)?;
        let (start, len) = (self.ids.len(), words.len());
        for (position, (id, target)) in words.iter().map(|&word| token(word)).enumerate() {
            self.positions.push(position as u32);
            if let (true, Some(cloze)) = (target, &self.cloze) {
                self.ids.push(cloze.mask);
                self.labels.push(id);
                continue;
            }
            self.ids.push(id);
            self.labels.push(NO_LABEL);
            if let (true, Some(before)) = (target, position.checked_sub(1)) {
                self.labels[start + before] = id;
            }
        }
        self.segments.push(Segment { q_start: start, q_len: len, k_start: start, k_len: len });
        Ok(())
    }

    /// Targets of a record.
    ///
    /// # Errors
    /// The system's.
    pub fn targets_of(&mut self, file: &TokenFile, record: usize) -> Result<usize> {
        // Nothing comes before a first token that would predict it; a class may stand there.
        let first = usize::from(self.cloze.is_none());
        Ok(file.read(record, &mut self.words)?.iter().skip(first).filter(|&&word| token(word).1).count())
    }

    /// Rows that predict something.
    pub fn targets(&self) -> usize {
        self.labels.iter().filter(|&&label| label != NO_LABEL).count()
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// As the backend reads them, with gradients divided by `targets`, and random numbers from `noise` while training.
    pub fn batch(&self, targets: usize, noise: Noise) -> Batch<'_> {
        let Self { ids, positions, labels, segments, groups, .. } = self;
        let choices = self.cloze.as_ref().map_or(&[][..], |cloze| &cloze.words);
        Batch { ids, positions, labels, choices, segments, targets, noise, groups }
    }
}

/// The endless sequence of records that training goes through, epoch after epoch.
pub struct Batches {
    order: Vec<u32>,
    shuffle: bool,
    seed: u64,
    epoch: Option<u64>,
}

impl Batches {
    /// Over `records` records.
    pub fn new(records: usize, shuffle: bool, seed: u64) -> Self {
        Self { order: (0..records as u32).collect(), shuffle, seed, epoch: None }
    }

    /// The record at `position` of the endless sequence.
    pub fn record(&mut self, position: u64) -> usize {
        let records = self.order.len() as u64;
        let epoch = position / records;
        if self.shuffle && self.epoch != Some(epoch) {
            self.reorder(epoch);
        }
        self.order[(position % records) as usize] as usize
    }

    /// Fisher-Yates from the identity, with the epoch's own stream: any epoch is reachable at once.
    fn reorder(&mut self, epoch: u64) {
        let numbers = Philox::new(self.seed, epoch);
        self.order.iter_mut().enumerate().for_each(|(at, record)| *record = at as u32);
        for at in (1..self.order.len()).rev() {
            self.order.swap(at, numbers.below(at as u64, at as u64 + 1) as usize);
        }
        self.epoch = Some(epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_every_record_once_in_an_order_of_its_own() {
        let mut batches = Batches::new(50, true, 7);
        let epochs: Vec<Vec<usize>> =
            (0..3).map(|e| (e * 50..e * 50 + 50).map(|i| batches.record(i)).collect()).collect();
        for epoch in &epochs {
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        }
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2]);
        assert_eq!(Batches::new(50, true, 7).record(120), epochs[2][20]);
        assert_ne!((0..50).map(|i| Batches::new(50, true, 8).record(i)).collect::<Vec<_>>(), epochs[0]);
    }

    #[test]
    fn without_shuffling_records_come_in_their_order() {
        let mut batches = Batches::new(3, false, 7);
        assert_eq!((0..7).map(|i| batches.record(i)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
    }
}
