//! What the sampler keeps, in memory that is taken once: the looks of the last two steps, and the highest of every step before.

use std::time::Duration;

use pocketune::memory::Resident;

/// Most looks that are kept of a step, and most steps that are kept by their highest. All together take 144 KiB.
const MOST: usize = 2048;

/// What was held at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Time since the first step began, in microseconds.
    pub micros: u64,
    /// The step, from 1.
    pub step: u32,
    rss_kib: u32,
    anon_kib: u32,
}

impl Look {
    /// A look at a time.
    pub fn new(micros: u64, step: u32, resident: Resident) -> Self {
        let kib = |bytes: usize| u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        Self { micros, step, rss_kib: kib(resident.total), anon_kib: kib(resident.anon) }
    }

    /// Bytes in all.
    pub fn rss(&self) -> usize {
        (self.rss_kib as usize) << 10
    }

    /// Bytes of the process's own.
    pub fn anon(&self) -> usize {
        (self.anon_kib as usize) << 10
    }

    /// The higher of two, each figure by itself, at the time of the higher total.
    fn higher(self, other: Look) -> Look {
        let at = if other.rss_kib > self.rss_kib { other } else { self };
        Look { anon_kib: self.anon_kib.max(other.anon_kib), ..at }
    }
}

/// Looks in order; when there is no more room, every two become the higher of them.
struct Looks {
    kept: Vec<Look>,
    /// How many looks a kept one stands for, and how many the last does so far.
    each: u32,
    last: u32,
}

impl Looks {
    fn new() -> Self {
        // Written once, so that the memory is the process's before its run is planned.
        let filler = Look { micros: u64::MAX, step: u32::MAX, rss_kib: u32::MAX, anon_kib: u32::MAX };
        let mut kept = std::hint::black_box(vec![filler; MOST]);
        kept.clear();
        Self { kept, each: 1, last: 0 }
    }

    fn clear(&mut self) {
        self.kept.clear();
        (self.each, self.last) = (1, 0);
    }

    fn add(&mut self, look: Look) {
        if self.last < self.each
            && let Some(last) = self.kept.last_mut()
        {
            *last = last.higher(look);
            self.last += 1;
            return;
        }
        if self.kept.len() == MOST {
            for at in 0..MOST / 2 {
                self.kept[at] = self.kept[2 * at].higher(self.kept[2 * at + 1]);
            }
            self.kept.truncate(MOST / 2);
            self.each *= 2;
        }
        self.kept.push(look);
        self.last = 1;
    }
}

/// One step.
struct Step {
    number: u32,
    /// When it began and ended, in microseconds.
    start: u64,
    end: u64,
    looks: Looks,
}

/// All that is kept of a run.
pub struct Record {
    before: Looks,
    previous: Step,
    current: Step,
}

impl Record {
    /// An empty one, which never takes more memory than it does now.
    pub fn new() -> Self {
        let step = || Step { number: 0, start: 0, end: 0, looks: Looks::new() };
        Self { before: Looks::new(), previous: step(), current: step() }
    }

    /// Says that `step` runs since `since`, or with 0 that the last step ended then; how long the one before took, when it ended.
    pub fn at(&mut self, step: u32, since: u64) -> Option<Duration> {
        if step == self.current.number || self.current.number != 0 && step == 0 && self.current.end > 0 {
            return None;
        }
        let ended = (self.current.number != 0).then(|| {
            self.current.end = since;
            Duration::from_micros(since.saturating_sub(self.current.start))
        });
        if step != 0 {
            if let Some(highest) = self.previous.looks.kept.iter().copied().reduce(Look::higher) {
                self.before.add(highest);
            }
            std::mem::swap(&mut self.previous, &mut self.current);
            self.current.looks.clear();
            (self.current.number, self.current.start, self.current.end) = (step, since, 0);
        }
        ended
    }

    /// Keeps a look at the step that runs.
    pub fn add(&mut self, look: Look) {
        self.current.looks.add(look);
    }

    /// Everything kept, in order of time.
    pub fn looks(&self) -> impl Iterator<Item = &Look> {
        [&self.before, &self.previous.looks, &self.current.looks].into_iter().flat_map(|looks| &looks.kept)
    }

    /// The last step with more than a look or two: its looks, each with its time as a fraction of the step.
    pub fn last_step(&self) -> impl Iterator<Item = (f64, &Look)> {
        let more = self.current.looks.kept.len() >= self.previous.looks.kept.len() / 2;
        let step = if more { &self.current } else { &self.previous };
        let length = step.end.saturating_sub(step.start).max(1) as f64;
        step.looks
            .kept
            .iter()
            .map(move |look| ((look.micros.saturating_sub(step.start) as f64 / length).min(1.0), look))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(micros: u64, step: u32, kib: usize) -> Look {
        Look::new(micros, step, Resident { total: kib << 10, anon: kib << 9 })
    }

    #[test]
    fn a_long_run_keeps_its_order_its_highest_and_its_memory() {
        let mut record = Record::new();
        let room = [&record.before.kept, &record.previous.looks.kept, &record.current.looks.kept].map(Vec::capacity);
        let (mut micros, mut highest) = (0, 0);
        for step in 1..=5000_u32 {
            record.at(step, micros);
            for at in 0..10 {
                micros += 100;
                let kib = 1000 + (step as usize * 7919 + at * 104_729) % 5003;
                highest = highest.max(kib);
                record.add(look(micros, step, kib));
            }
        }
        record.at(0, micros);
        let looks: Vec<&Look> = record.looks().collect();
        assert!(looks.windows(2).all(|pair| pair[0].micros < pair[1].micros));
        assert_eq!(looks.iter().map(|look| look.rss()).max(), Some(highest << 10));
        assert_eq!((looks[looks.len() - 20].step, looks[looks.len() - 1].step), (4999, 5000));
        let now = [&record.before.kept, &record.previous.looks.kept, &record.current.looks.kept].map(Vec::capacity);
        assert_eq!(now.iter().sum::<usize>(), room.iter().sum::<usize>());
        assert!(room.iter().sum::<usize>() * size_of::<Look>() <= 144 << 10);
    }

    #[test]
    fn a_long_step_keeps_its_whole_length() {
        let mut record = Record::new();
        record.at(1, 0);
        (0..100_000).for_each(|micros| record.add(look(micros, 1, if micros == 54_321 { 900 } else { 100 })));
        record.at(0, 100_000);
        let fractions: Vec<f64> = record.last_step().map(|(fraction, _)| fraction).collect();
        assert!(fractions.len() > MOST / 2 && fractions.len() <= MOST);
        assert!(fractions[0] < 0.01 && fractions[fractions.len() - 1] > 0.99);
        let (at, _) = record.last_step().find(|(_, look)| look.rss() == 900 << 10).expect("the highest look is kept");
        assert!((at - 0.543_21).abs() < 1e-6);
    }
}
