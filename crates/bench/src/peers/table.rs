//! The table of `peers`: what each program took, beside the two peers, and whether ours is as far ahead as it must be.

use serde_json::{Value, json};

use super::Row;
use super::child::Turn;

/// The head of the table, in Markdown.
pub const HEAD: &str = "\
| shape | seq | threads | program | CPU s a step | s a step | tokens/s | MFU | peak RSS MB | against PyTorch: CPU, tokens/s (of the shortest turns), RSS | against PyTorch, checkpointing |
|---|--:|--:|---|--:|--:|--:|--:|--:|---|---|
";

/// Tokens a second of ours with `block`, against PyTorch and against PyTorch with checkpointing, that every row must reach.
const TARGETS: [f64; 2] = [2.0, 2.5];

/// What a program came to.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Every turn after the first, which warmed up.
    pub turns: Vec<Turn>,
    /// The most memory it held.
    pub peak: u64,
    /// The share of what its products reach alone that a step of a second would be; ours alone says.
    pub mfu_seconds: Option<f64>,
}

impl Measured {
    fn median(&self, of: fn(&Turn) -> f64) -> f64 {
        let mut all: Vec<f64> = self.turns.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        let (low, high) = (all[(all.len() - 1) / 2], all[all.len() / 2]);
        (low + high) / 2.0
    }

    /// Seconds a step of the shortest turn: what a neighbour on the same processor disturbed least.
    fn least(&self) -> f64 {
        self.turns.iter().map(|turn| turn.wall).fold(f64::INFINITY, f64::min)
    }

    /// CPU seconds a step, seconds a step and bytes: medians over turns, and the peak.
    fn figures(&self) -> [f64; 3] {
        [self.median(|turn| turn.cpu), self.median(|turn| turn.wall), self.peak as f64]
    }
}

/// All programs of a row with a number of threads, in the order of [`super::NAMES`]; the words of those that did not run.
pub struct Block<'a> {
    /// What was run.
    pub row: &'a Row,
    /// With how many threads.
    pub threads: usize,
    /// What came of it.
    pub programs: &'a [(&'static str, std::result::Result<Measured, String>)],
}

impl Block<'_> {
    fn of(&self, name: &str) -> Option<&Measured> {
        self.programs.iter().find(|program| program.0 == name)?.1.as_ref().ok()
    }

    /// CPU time, tokens a second, memory, and tokens a second of the shortest turns of `measured`, each as a multiple of what `name` has.
    fn against(&self, measured: &Measured, name: &str) -> Option<[f64; 4]> {
        let ([cpu, wall, peak], theirs) = (measured.figures(), self.of(name)?);
        let [their_cpu, their_wall, their_peak] = theirs.figures();
        Some([cpu / their_cpu, their_wall / wall, peak / their_peak, theirs.least() / measured.least()])
    }

    /// The lines of the table.
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for (name, measured) in self.programs {
            let place = format!("| {} | {} | {} | {name} |", self.row.shape, self.row.seq, self.threads);
            match measured {
                Err(words) => text.push_str(&format!("{place} {} | | | | | | |\n", words.replace('|', "/"))),
                Ok(measured) => {
                    let [cpu, wall, peak] = measured.figures();
                    let ratio = |peer: &str| match self.against(measured, peer).filter(|_| *name != peer) {
                        Some([cpu, speed, memory, best]) => {
                            format!("{cpu:.2}x, {speed:.2}x ({best:.2}x), {memory:.2}x")
                        }
                        None => "–".into(),
                    };
                    text.push_str(&format!(
                        "{place} {cpu:.3} | {wall:.3} | {:.1} | {} | {:.0} | {} | {} |\n",
                        self.row.seq as f64 / wall,
                        measured.mfu_seconds.map_or("–".into(), |seconds| format!("{:.0} %", 100.0 * seconds / wall)),
                        peak / 1e6,
                        ratio(super::PYTORCH),
                        ratio(super::CHECKPOINTING)
                    ));
                }
            }
        }
        text
    }

    /// Where ours with `block` is not as far ahead as it must be, or something did not run.
    pub fn faults(&self) -> Vec<String> {
        let place = format!("{}@{}, {} threads", self.row.shape, self.row.seq, self.threads);
        let mut faults = Vec::new();
        for (peer, target) in [super::PYTORCH, super::CHECKPOINTING].into_iter().zip(TARGETS) {
            let ratio = self.of(super::BLOCK).and_then(|ours| self.against(ours, peer)).map(|ratios| ratios[1]);
            match ratio {
                Some(ratio) if ratio >= target => {}
                Some(ratio) => faults.push(format!("{place}: {ratio:.2}x of {peer} in tokens/s, {target:.1}x wanted")),
                None => faults.push(format!("{place}: not compared with {peer}")),
            }
        }
        faults
    }

    /// Every figure, for programs.
    pub fn json(&self) -> Value {
        let programs: Vec<Value> = self
            .programs
            .iter()
            .map(|(name, measured)| match measured {
                Err(words) => json!({ "program": name, "fault": words }),
                Ok(measured) => {
                    let [cpu, wall, peak] = measured.figures();
                    let turns: Vec<Value> = measured
                        .turns
                        .iter()
                        .map(|t| json!({ "cpu_s": t.cpu, "wall_s": t.wall, "loss": t.loss }))
                        .collect();
                    json!({
                        "program": name, "cpu_s": cpu, "wall_s": wall, "tokens_per_second": self.row.seq as f64 / wall,
                        "peak_rss_bytes": peak, "mfu": measured.mfu_seconds.map(|seconds| seconds / wall), "turns": turns,
                        "against_pytorch": self.against(measured, super::PYTORCH),
                        "against_pytorch_checkpointing": self.against(measured, super::CHECKPOINTING),
                    })
                }
            })
            .collect();
        json!({ "shape": self.row.shape, "seq": self.row.seq, "threads": self.threads, "programs": programs })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK, CHECKPOINTING, PYTORCH};
    use super::*;

    fn took(walls: &[f64]) -> Measured {
        let turn = |&wall: &f64| Turn { cpu: 2.0 * wall, wall, loss: 1.0 };
        Measured { turns: walls.iter().map(turn).collect(), peak: 8_000_000, mfu_seconds: Some(0.5) }
    }

    #[test]
    fn medians_are_compared_so_one_disturbed_turn_changes_nothing() {
        assert_eq!(took(&[1.0, 50.0, 3.0]).figures(), [6.0, 3.0, 8e6]);
        assert_eq!(took(&[1.0, 2.0]).figures()[1], 1.5);
    }

    #[test]
    fn the_shortest_turns_are_compared_beside_the_medians() {
        let row = Row { shape: "smollm2-135m".into(), seq: 256 };
        let programs = [(BLOCK, Ok(took(&[1.0, 4.0, 4.0]))), (PYTORCH, Ok(took(&[9.0, 3.0, 8.0])))];
        let block = Block { row: &row, threads: 1, programs: &programs };
        assert!(block.lines().contains("0.50x, 2.00x (3.00x), 1.00x"), "{}", block.lines());
    }

    #[test]
    fn a_row_that_is_not_far_enough_ahead_is_a_fault_and_one_that_is_is_none() {
        let row = Row { shape: "smollm2-135m".into(), seq: 256 };
        let faults = |ours: f64| {
            let programs = [(BLOCK, Ok(took(&[ours]))), (PYTORCH, Ok(took(&[2.0]))), (CHECKPOINTING, Ok(took(&[3.0])))];
            let block = Block { row: &row, threads: 1, programs: &programs };
            assert!(block.lines().lines().count() == 3, "{}", block.lines());
            block.faults()
        };
        assert_eq!(faults(1.0), Vec::<String>::new());
        assert_eq!(faults(1.1).len(), 1, "2.5x wanted of {:?}", faults(1.1).len());
        assert_eq!(faults(1.3).len(), 2);
    }

    #[test]
    fn a_peer_that_did_not_run_is_named_and_counts_as_a_fault() {
        let row = Row { shape: "smollm2-135m".into(), seq: 256 };
        let programs = [(BLOCK, Ok(took(&[1.0]))), (PYTORCH, Err("killed | dead".into()))];
        let block = Block { row: &row, threads: 2, programs: &programs };
        assert!(block.lines().contains("killed / dead"));
        assert_eq!(block.faults().len(), 2);
    }
}
