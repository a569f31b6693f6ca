//! A run as it goes: reports in words or as JSON lines on standard output, notes on standard error, and where that is a terminal one line
//! below them that moves. Piped, there is nothing but whole lines.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pocketune::backend::Alone;
use pocketune::train::{Advice, Event, Host, Report, Summary};
use serde_json::json;

use crate::args::LogArg;
use crate::conditions::Watch;
use crate::memory_bar::{bar, mib};
use crate::trace::Trace;
use crate::train::planned;
use crate::{Failure, data, note, say};

/// Time between two states of the line that moves.
const BETWEEN: Duration = Duration::from_millis(200);

/// Prints what happens.
pub struct Printer {
    start: Instant,
    log: LogArg,
    quiet: bool,
    trace: Option<Trace>,
    /// What the plan was made for.
    budget: Option<usize>,
    line: Option<Line>,
    /// What the machine advises.
    watch: Watch,
}

/// The line that moves.
#[derive(Default)]
struct Line {
    /// When the first step began, and when the line was drawn last.
    first: Option<Duration>,
    drawn: Option<Duration>,
    report: Option<Report>,
}

impl Printer {
    pub fn new(log: LogArg, quiet: bool, trace: Option<Trace>, watch: Watch) -> Self {
        let moves = !quiet && log == LogArg::Text && std::io::stderr().is_terminal();
        Self { start: Instant::now(), log, quiet, trace, budget: None, line: moves.then(Line::default), watch }
    }

    /// Time since the run began.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Ends the trace, where there is one; where its picture is.
    pub fn finish(&mut self, summary: &Summary) -> Result<Option<PathBuf>, Failure> {
        self.clear();
        self.trace.take().map(|trace| trace.finish(&summary.plan, self.budget)).transpose()
    }

    /// Takes the moving line away, so that whole lines can be printed.
    pub fn clear(&mut self) {
        if let Some(line) = &mut self.line
            && line.drawn.take().is_some()
        {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            note(text);
        }
    }

    /// Update `iter` of `iters` begins.
    fn draw(&mut self, iter: usize, iters: usize) {
        let now = self.start.elapsed();
        let Some(line) = &mut self.line else { return };
        let first = *line.first.get_or_insert(now);
        if line.drawn.is_some_and(|drawn| now < drawn + BETWEEN) {
            return;
        }
        line.drawn = Some(now);
        let text = moving(iter, iters, now - first, line.report.as_ref(), self.budget);
        // A terminal that went away is no reason to stop training.
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        let _ = std::io::stderr().flush();
    }

    fn trace(&self, event: Event) {
        let Some(trace) = &self.trace else { return };
        match event {
            Event::Step { iter, .. } => trace.step(iter),
            Event::Report(report) if report.iter == report.iters => trace.end(),
            Event::Stopped { .. } => trace.end(),
            _ => {}
        }
    }
}

impl Host for Printer {
    fn now(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn advice(&mut self) -> Advice {
        self.watch.advice(self.start.elapsed())
    }

    fn event(&mut self, event: Event) {
        self.trace(event);
        if let Event::Step { iter, iters } = event {
            return self.draw(iter, iters);
        }
        self.clear();
        match event {
            Event::Step { .. } => {}
            Event::Report(report) => {
                if let Some(line) = &mut self.line {
                    line.report = Some(report);
                }
                match self.log {
                    LogArg::Jsonl => say(&json_line(&report)),
                    LogArg::Text if self.quiet => {}
                    LogArg::Text => say(&text_line(&report)),
                }
            }
            Event::Validated { iter, outcome } => {
                let (loss, accuracy) = (outcome.mean_loss(), outcome.accuracy());
                if self.log == LogArg::Jsonl {
                    let found = json!({
                        "iter": iter, "val_loss": loss, "val_perplexity": loss.exp(), "val_accuracy": accuracy,
                        "val_tokens": outcome.targets,
                    });
                    say(&format!("{found}\n"));
                }
                let share = 100.0 * accuracy;
                let perplexity = loss.exp();
                self.note(&format!(
                    "Iter {iter}: Val loss {loss:.3}, Val perplexity {perplexity:.3}, Val accuracy {share:.1} %"
                ));
            }
            Event::Stopped { iter, best } => {
                self.note(&format!("Stopped after update {iter}: the validation loss was lowest after update {best}"));
            }
            Event::Planned { plan, budget, bytes, machine, trainable } => {
                self.budget = bytes;
                self.watch.planned(bytes);
                self.note(&planned(plan, (budget, bytes), machine, trainable));
            }
            Event::Prepared(data) if !self.quiet => data::note_prepared(data),
            Event::Laid { packed, passes, filled } if !self.quiet => data::note_passes(packed, passes, filled),
            Event::Prepared(_) | Event::Laid { .. } => {}
            Event::Measured(alone) => self.note(&products_alone(alone)),
            Event::Resumed { iter, from } => {
                self.note(&format!("Resuming after update {iter} ({})", from.display()));
            }
            Event::Committed { .. } => {}
            Event::Paused { iter } => self.note(&format!("Paused after update {iter}; the state is on disk")),
            Event::Continued => self.note("Going on"),
            Event::Moved { plan, bytes } => {
                self.note(&format!("Plan: moved to a peak of {} of {}", mib(plan.peak()), mib(bytes)));
                self.note(&format!("Plan: {}", crate::plan::how(plan)));
            }
            Event::Skipped { iter, loss } => {
                self.note(&format!("Iter {iter}: skipped, its numbers are bad (loss {loss:.3})"));
            }
            Event::WentBack { iter, scale } => {
                self.note(&format!("Back to the state after update {iter}; learning rates are multiplied by {scale}"));
            }
            Event::Saved(place) => self.note(&format!("Saved the adapter to {}", place.display())),
            Event::SavedModel(place) => self.note(&format!("Saved the model to {}", place.display())),
        }
    }
}

/// The moving line before update `iter`, so long after the first began.
fn moving(iter: usize, iters: usize, since: Duration, report: Option<&Report>, budget: Option<usize>) -> String {
    let done = iter - 1;
    let mut text = format!("{done:>6}/{iters} {}", bar(done, iters, 20));
    if let Some(report) = report {
        let peak = report.peak.total;
        text.push_str(&format!("  loss {:.3}  {:.0} tokens/s", report.loss, report.tokens_per_second));
        text.push_str(&format!("  memory {} of {}", mib(peak), mib(budget.unwrap_or(report.planned_peak))));
    }
    if done > 0 {
        let left = since.as_secs_f64() / done as f64 * (iters - done) as f64;
        text.push_str(&format!("  {} left", clock(left as u64)));
    }
    text
}

/// Seconds as a clock shows them.
fn clock(seconds: u64) -> String {
    match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

fn json_line(report: &Report) -> String {
    let line = json!({
        "iter": report.iter,
        "loss": report.loss,
        // As short as a person would write it: an f32 widened to f64 shows digits that it never had.
        "lr": report.lr.to_string().parse::<f64>().unwrap_or_default(),
        "iters_per_second": report.iters_per_second,
        "tokens_per_second": report.tokens_per_second,
        "mfu": report.mfu,
        "trained_tokens": report.trained_tokens,
        "peak_rss_bytes": report.peak.total,
        "peak_anon_bytes": report.peak.anon,
        "planned_peak_bytes": report.planned_peak,
    });
    format!("{line}\n")
}

fn text_line(report: &Report) -> String {
    format!(
        "Iter {}: Train loss {:.3}, Learning Rate {:.3e}, It/sec {:.3}, Tokens/sec {:.1}, MFU {}, Trained Tokens {}, Peak mem {:.3} GB\n",
        report.iter,
        report.loss,
        report.lr,
        report.iters_per_second,
        report.tokens_per_second,
        report.mfu.map_or("unknown".into(), |mfu| format!("{:.1} %", 100.0 * mfu)),
        report.trained_tokens,
        report.peak.total as f64 / 1e9
    )
}

/// What MFU is a share of.
fn products_alone(alone: Alone) -> String {
    format!(
        "Products: {}x{} in {} with {} rows reach {:.1} GFLOP/s alone forward, {:.1} backward; MFU is of the faster",
        alone.rows,
        alone.cols,
        alone.ty.name(),
        alone.n,
        alone.forward / 1e9,
        alone.backward / 1e9
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moving_line_says_how_far_and_how_long() {
        let text = moving(26, 100, Duration::from_secs(50), None, None);
        assert!(text.starts_with("    25/100 █████░"), "{text}");
        assert!(text.ends_with("  2:30 left"), "{text}");
        assert_eq!(moving(1, 4, Duration::ZERO, None, None).trim(), "0/4 ░░░░░░░░░░░░░░░░░░░░");
        assert_eq!(clock(3_725), "1:02:05");
    }
}
