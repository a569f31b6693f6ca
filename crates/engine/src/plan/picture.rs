//! The memory picture: what a process holds over the time of one step, stacked by what it is for, as an SVG. It answers "why is my
//! peak here?" from the same program that runs. It decides nothing, measures nothing and writes no file.

mod aside;
mod canvas;
mod columns;

pub use canvas::{Canvas, ticks};
use columns::{Band, Held, Step};

use super::Plan;

/// What a running process held at one time of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The time, as a fraction of the step.
    pub fraction: f64,
    /// Bytes of its own (`RssAnon`).
    pub anon: usize,
    /// Bytes in all (RSS).
    pub rss: usize,
}

/// The whole picture, and the plot in it: left, top, right, bottom.
const SIZE: [f64; 2] = [1100.0, 600.0];
const PLOT: [f64; 4] = [68.0, 76.0, 762.0, 508.0];
const INK: &str = "#22262e";
const PALE: &str = "#6b7280";
/// Keeps words legible over whatever they are on.
const HALO: &str = "paint-order=\"stroke\" stroke=\"#fcfcfa\" stroke-width=\"3\"";

/// Draws one step of `plan`, with the budget as a line and what was measured over it, where given.
pub fn picture(plan: &Plan, budget: Option<usize>, measured: Option<&[Sample]>) -> String {
    let step = Step::new(plan);
    let samples = measured.unwrap_or_default();
    let highest = samples.iter().map(|sample| sample.rss).max().unwrap_or(0).max(step.peak.total(plan));
    // A budget far above would flatten everything else: it is drawn at the edge then.
    let near = budget.filter(|&budget| budget <= highest + highest * 3 / 5).unwrap_or(0);
    let scale = Scale { most: highest.max(near) as f64 * 1.07, seconds: step.seconds };
    let mut canvas = Canvas::new(SIZE[0], SIZE[1]);
    title(&mut canvas, plan, &step, samples);
    axes(&mut canvas, &scale, &step);
    bands(&mut canvas, &scale, plan, &step);
    curves(&mut canvas, &scale, samples);
    marks(&mut canvas, &scale, plan, &step);
    if let Some(budget) = budget {
        budget_line(&mut canvas, &scale, budget, near > 0);
    }
    aside::draw(&mut canvas, plan, &step, !samples.is_empty());
    canvas.finish()
}

/// From bytes and seconds to places.
struct Scale {
    most: f64,
    seconds: f64,
}

impl Scale {
    fn x(&self, seconds: f64) -> f64 {
        PLOT[0] + (PLOT[2] - PLOT[0]) * seconds / self.seconds
    }

    fn y(&self, bytes: usize) -> f64 {
        PLOT[3] - (PLOT[3] - PLOT[1]) * bytes as f64 / self.most
    }
}

fn mib(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn title(canvas: &mut Canvas, plan: &Plan, step: &Step, samples: &[Sample]) {
    let (policy, peak) = (&plan.policy, mib(plan.peak()));
    let mut words = format!("One step as planned: peak {peak} MiB, {:.3} s", step.seconds);
    if let Some(measured) = samples.iter().map(|sample| sample.rss).max() {
        words.push_str(&format!("; measured {} MiB", mib(measured)));
        let note = "What was measured is drawn by its fraction of the step, whose real length may differ from the planned one.";
        canvas.words([PLOT[0], SIZE[1] - 8.0], 11.0, "start", &format!("fill=\"{PALE}\""), note);
    }
    canvas.words([PLOT[0], 32.0], 19.0, "start", &format!("fill=\"{INK}\" font-weight=\"600\""), &words);
    let mut words = format!("{} tokens; {}", plan.program.tokens, policy.keep.words(plan.program.blocks()));
    words.push_str(if policy.stream { "; weights streamed" } else { "; weights resident" });
    if plan.spilled() > 0 {
        words.push_str(&format!("; {} MiB to disk and back", mib(plan.spilled())));
    }
    if plan.peak() > step.peak.total(plan) {
        words.push_str("; the peak is before the step, while data is prepared");
    }
    canvas.words([PLOT[0], 53.0], 12.0, "start", &format!("fill=\"{PALE}\""), &words);
}

/// Ticks in MiB and seconds, and the phases under them.
fn axes(canvas: &mut Canvas, scale: &Scale, step: &Step) {
    let pale = format!("fill=\"{PALE}\"");
    let mebi = f64::from(1 << 20);
    let (size, decimals) = ticks(scale.most / mebi, 7.0);
    for at in 0..=(scale.most / mebi / size) as usize {
        let value = at as f64 * size;
        let y = scale.y((value * mebi) as usize);
        canvas.line([PLOT[0], y, PLOT[2], y], "stroke=\"#e3e5ea\"");
        canvas.words([PLOT[0] - 8.0, y + 4.0], 11.0, "end", &pale, &format!("{value:.decimals$}"));
    }
    canvas.words([PLOT[0] - 8.0, PLOT[1] - 8.0], 11.0, "end", &pale, "MiB");
    let (size, decimals) = ticks(scale.seconds, 8.0);
    for at in 0..=(scale.seconds / size) as usize {
        let value = at as f64 * size;
        let x = scale.x(value);
        canvas.line([x, PLOT[3], x, PLOT[3] + 5.0], "stroke=\"#9aa1ad\"");
        canvas.words([x, PLOT[3] + 19.0], 11.0, "middle", &pale, &format!("{value:.decimals$}"));
    }
    canvas.words([PLOT[2] + 8.0, PLOT[3] + 19.0], 11.0, "start", &pale, "s");
    for (at, phase) in step.phases.iter().enumerate() {
        let [left, right] = phase.span.map(|seconds| scale.x(seconds));
        let shade = ["#e8edf5", "#f8e3e6", "#e6f2ea", "#f1eaf8"][at % 4];
        canvas.rect([left, PLOT[3] + 30.0, right - left, 22.0], shade);
        // A narrow phase has its name below.
        let below = if right - left < 8.0 * phase.name.len() as f64 { 22.0 } else { 0.0 };
        canvas.words([(left + right) / 2.0, PLOT[3] + 45.5 + below], 12.0, "middle", &pale, phase.name);
    }
}

/// The stack, each band from the top of the one below to its own.
fn bands(canvas: &mut Canvas, scale: &Scale, plan: &Plan, step: &Step) {
    let mut base = vec![0; step.columns.len()];
    for band in Band::order(plan.policy.stream) {
        let tops: Vec<usize> = base.iter().zip(&step.columns).map(|(low, held)| low + held.band(band, plan)).collect();
        if tops != base {
            let mut points = stairs(scale, &tops);
            points.extend(stairs(scale, &base).into_iter().rev());
            canvas.path(&points, true, &format!("class=\"band\" fill=\"{}\"", band.look().1));
        }
        base = tops;
    }
    canvas.path(&stairs(scale, &base), false, &format!("fill=\"none\" stroke=\"{PALE}\" stroke-width=\"0.8\""));
}

/// The corners of a curve that is level in each column.
fn stairs(scale: &Scale, levels: &[usize]) -> Vec<[f64; 2]> {
    let width = scale.seconds / levels.len() as f64;
    let mut points = vec![];
    for (at, &level) in levels.iter().enumerate() {
        let y = scale.y(level);
        if at == 0 || levels[at - 1] != level {
            points.push([scale.x(at as f64 * width), y]);
        }
        if levels.get(at + 1) != Some(&level) {
            points.push([scale.x((at + 1) as f64 * width), y]);
        }
    }
    points
}

fn curves(canvas: &mut Canvas, scale: &Scale, samples: &[Sample]) {
    let curve = |bytes: fn(&Sample) -> usize| -> Vec<[f64; 2]> {
        samples.iter().map(|sample| [scale.x(sample.fraction * scale.seconds), scale.y(bytes(sample))]).collect()
    };
    if !samples.is_empty() {
        canvas.path(&curve(|sample| sample.anon), false, &format!("class=\"measured\" {ANON_LINE}"));
        canvas.path(&curve(|sample| sample.rss), false, &format!("class=\"measured\" {RSS_LINE}"));
    }
}

const RSS_LINE: &str = "fill=\"none\" stroke=\"#111318\" stroke-width=\"1.8\" stroke-linejoin=\"round\"";
const ANON_LINE: &str = "fill=\"none\" stroke=\"#111318\" stroke-width=\"1.3\" stroke-dasharray=\"2 3\"";

/// Where the peak is, and where the arena is fullest if that is elsewhere.
fn marks(canvas: &mut Canvas, scale: &Scale, plan: &Plan, step: &Step) {
    let mut mark = |held: &Held, name: &str, how: &str, above: f64| {
        let (x, y) = (scale.x(step.time(held)), scale.y(held.total(plan)));
        canvas.line([x, y, x, PLOT[3]], &format!("class=\"{name}\" stroke=\"{INK}\" {how}"));
        canvas.dot([x, y], 3.5, &format!("fill=\"{INK}\""));
        let anchor = if x > (PLOT[0] + PLOT[2]) / 2.0 { "end" } else { "start" };
        canvas.words([x, y - above], 11.5, anchor, &format!("fill=\"{INK}\" font-weight=\"600\" {HALO}"), name);
    };
    mark(&step.peak, "peak", "stroke-width=\"1.2\"", 8.0);
    if elsewhere(step) {
        mark(&step.fullest, "arena fullest", "stroke-width=\"1\" stroke-dasharray=\"1 3\"", 8.0);
    }
}

fn elsewhere(step: &Step) -> bool {
    step.fullest.used() > step.peak.used()
}

fn budget_line(canvas: &mut Canvas, scale: &Scale, budget: usize, near: bool) {
    let y = if near { scale.y(budget) } else { PLOT[1] };
    canvas.line(
        [PLOT[0], y, PLOT[2], y],
        "class=\"budget\" stroke=\"#b3261e\" stroke-width=\"1.5\" stroke-dasharray=\"8 5\"",
    );
    let words = format!("budget {} MiB{}", mib(budget), if near { "" } else { ", far above" });
    canvas.words([PLOT[2], y - 6.0], 11.5, "end", &format!("fill=\"#b3261e\" {HALO}"), &words);
}

#[cfg(test)]
mod tests;
