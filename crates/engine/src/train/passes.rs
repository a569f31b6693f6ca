//! Which records a pass reads. Plainly, so many in the order of the epoch. Packed, as many as fit the room that the plan has for the rows of
//! a batch: the order is cut into windows, and inside each the longest record goes first, to the first pass that has room for it. Passes
//! of a window then come in an order drawn by the seed, so that long records are not always first. Everything is a function of the seed and
//! the records' lengths, and takes the memory of one window, which is taken at the start.

use pocketune_kernels::philox::Philox;

use super::Batches;
use crate::store::TokenFile;

/// Records that are packed together; a pass never holds more.
pub const WINDOW: usize = 1024;

/// The stream of random numbers that orders the passes of a window; records are split and shuffled by others.
const STREAM: u64 = 4 << 32;

/// The endless sequence of passes.
pub struct Passes {
    batches: Batches,
    records: Vec<u32>,
    kind: Kind,
}

enum Kind {
    /// So many records a pass.
    Plain(usize),
    Packed(Box<Packing>),
}

/// The passes of one window.
struct Packing {
    /// Tokens that fit in a pass.
    room: usize,
    /// Records of an epoch.
    epoch: u64,
    seed: u64,
    /// The first record of the window in the endless sequence, and the number of its first pass.
    first: u64,
    passes_before: u64,
    /// The records of the window: tokens, number, pass.
    members: Vec<Member>,
    /// Tokens in each pass.
    filled: Vec<usize>,
    /// The order of passes.
    order: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Member {
    tokens: u32,
    record: u32,
    pass: u32,
}

impl Passes {
    /// `per_pass` records a pass.
    pub fn plain(batches: Batches, per_pass: usize) -> Self {
        Self { batches, records: Vec::with_capacity(per_pass), kind: Kind::Plain(per_pass) }
    }

    /// As many records of `file` as have `room` tokens together; no record has more.
    pub fn packed(batches: Batches, file: &TokenFile, room: usize, seed: u64) -> Self {
        let epoch = file.len() as u64;
        let mut packing = Packing {
            room,
            epoch,
            seed,
            first: 0,
            passes_before: 0,
            members: Vec::with_capacity(WINDOW),
            filled: Vec::with_capacity(WINDOW),
            order: Vec::with_capacity(WINDOW),
        };
        let mut batches = batches;
        packing.pack(&mut batches, file);
        Self { batches, records: Vec::with_capacity(WINDOW), kind: Kind::Packed(Box::new(packing)) }
    }

    /// What a pass adds to the position in the endless sequence.
    pub fn step(&self) -> u64 {
        match &self.kind {
            Kind::Plain(per_pass) => *per_pass as u64,
            Kind::Packed(_) => 1,
        }
    }

    /// The records of the pass at `position`.
    pub fn records(&mut self, position: u64, file: &TokenFile) -> &[u32] {
        self.records.clear();
        match &mut self.kind {
            Kind::Plain(per_pass) => {
                for at in position..position + *per_pass as u64 {
                    self.records.push(self.batches.record(at) as u32);
                }
            }
            Kind::Packed(packing) => {
                packing.seek(position, &mut self.batches, file);
                let pass = packing.order[(position - packing.passes_before) as usize];
                let members = packing.members.iter().filter(|member| member.pass == pass);
                self.records.extend(members.map(|member| member.record));
            }
        }
        &self.records
    }

    /// Passes of the first epoch, and the share of the room for `room` tokens that they fill.
    pub fn first_epoch(&mut self, file: &TokenFile, room: usize) -> (u64, f64) {
        let records = file.len() as u64;
        let passes = match &self.kind {
            Kind::Plain(per_pass) => records.div_ceil(*per_pass as u64),
            Kind::Packed(_) => {
                let mut passes = 0;
                while let Kind::Packed(packing) = &mut self.kind {
                    packing.seek(passes, &mut self.batches, file);
                    if packing.first >= records {
                        break;
                    }
                    passes += packing.filled.len() as u64;
                }
                passes
            }
        };
        (passes, file.tokens() as f64 / (passes as f64 * room as f64))
    }
}

impl Packing {
    /// Goes to the window of a pass: onwards, or from the beginning where it lies behind.
    fn seek(&mut self, position: u64, batches: &mut Batches, file: &TokenFile) {
        if position < self.passes_before {
            (self.first, self.passes_before) = (0, 0);
            self.pack(batches, file);
        }
        while position >= self.passes_before + self.filled.len() as u64 {
            self.passes_before += self.filled.len() as u64;
            self.first += self.members.len() as u64;
            self.pack(batches, file);
        }
    }

    /// Packs the window that begins at `first`; no window reaches into the next epoch.
    fn pack(&mut self, batches: &mut Batches, file: &TokenFile) {
        let end = (self.first / self.epoch + 1) * self.epoch;
        self.members.clear();
        for at in self.first..end.min(self.first + WINDOW as u64) {
            let record = batches.record(at);
            self.members.push(Member { tokens: file.length(record) as u32, record: record as u32, pass: 0 });
        }
        // Ties go by the record's number, so that the order is one order.
        self.members.sort_unstable_by_key(|member| (u32::MAX - member.tokens, member.record));
        self.filled.clear();
        for member in &mut self.members {
            let tokens = member.tokens as usize;
            let pass = self.filled.iter().position(|filled| filled + tokens <= self.room);
            let pass = pass.unwrap_or_else(|| {
                self.filled.push(0);
                self.filled.len() - 1
            });
            self.filled[pass] += tokens;
            member.pass = pass as u32;
        }
        let numbers = Philox::new(self.seed, STREAM + self.first);
        self.order.clear();
        self.order.extend(0..self.filled.len() as u32);
        for at in (1..self.order.len()).rev() {
            self.order.swap(at, numbers.below(at as u64, at as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::TokenWriter;

    /// A file of records of these lengths.
    fn file(lengths: &[usize]) -> TokenFile {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::new(folder.path()).unwrap();
        for &length in lengths {
            writer.push(&vec![1; length], &vec![true; length]).unwrap();
        }
        writer.finish().unwrap()
    }

    fn lengths(count: usize) -> Vec<usize> {
        let numbers = Philox::new(5, 0);
        (0..count as u64).map(|at| 2 + numbers.below(at, 99) as usize).collect()
    }

    fn packed(file: &TokenFile, room: usize) -> Passes {
        Passes::packed(Batches::new(file.len(), true, 3), file, room, 3)
    }

    #[test]
    fn every_epoch_has_every_record_once_and_no_pass_overflows() {
        let lengths = lengths(3000);
        let file = file(&lengths);
        let mut passes = packed(&file, 256);
        let (mut position, mut epochs) = (0, Vec::new());
        for _ in 0..2 {
            let (mut seen, start) = (vec![0; lengths.len()], position);
            while seen.contains(&0) {
                let records = passes.records(position, &file);
                assert!(!records.is_empty());
                assert!(records.iter().map(|&record| lengths[record as usize]).sum::<usize>() <= 256);
                records.iter().for_each(|&record| seen[record as usize] += 1);
                position += passes.step();
            }
            assert!(seen.iter().all(|&count| count == 1));
            epochs.push(position - start);
        }
        let (first, filled) = packed(&file, 256).first_epoch(&file, 256);
        assert_eq!(first, epochs[0]);
        assert!(filled > 0.97, "{filled}");
    }

    #[test]
    fn any_pass_is_reached_at_once() {
        let file = file(&lengths(2500));
        let mut passes = packed(&file, 300);
        let all: Vec<Vec<u32>> = (0..900).map(|at| passes.records(at, &file).to_vec()).collect();
        for at in [899, 0, 450, 451, 3] {
            assert_eq!(passes.records(at, &file), all[at as usize]);
            assert_eq!(packed(&file, 300).records(at, &file), all[at as usize]);
        }
    }

    #[test]
    fn plain_passes_have_so_many_records() {
        let file = file(&[5, 6, 7]);
        let mut passes = Passes::plain(Batches::new(3, false, 0), 2);
        assert_eq!((passes.records(0, &file).to_vec(), passes.step()), (vec![0, 1], 2));
        assert_eq!(passes.records(2, &file), [2, 0]);
        assert_eq!(passes.first_epoch(&file, 14), (2, 18.0 / 28.0));
    }
}
