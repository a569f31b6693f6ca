//! The words beside the plot: the legend with the bytes at the peak, and what is alive there by name. Where the arena is fullest at
//! another moment, that has a list of its own, because it is what the arena's size comes from.

use super::canvas::Canvas;
use super::columns::{Band, Group, Held, Step, alive};
use super::{ANON_LINE, INK, PLOT, RSS_LINE, SIZE, elsewhere, mib};
use crate::plan::Plan;

/// Where the words start and end, and the height of one line of them.
const ASIDE: [f64; 2] = [788.0, 1082.0];
const LINE: f64 = 16.0;

/// The legend with the bytes at the peak, and what is alive there by name.
pub fn draw(canvas: &mut Canvas, plan: &Plan, step: &Step, measured: bool) {
    let mut y = PLOT[1] + 4.0;
    heading(canvas, y, &format!("Held at the peak, {:.3} s", step.time(&step.peak)), "MiB");
    let mut order = Band::order(plan.policy.stream);
    order.reverse();
    for band in order {
        let (name, colour) = band.look();
        if step.columns.iter().any(|held| held.band(band, plan) > 0) {
            y += LINE;
            canvas.rect([ASIDE[0], y - 9.5, 11.0, 11.0], colour);
            row(canvas, y, name, &mib(step.peak.band(band, plan)));
        }
    }
    if measured {
        for (name, how) in [("measured, all (RSS)", RSS_LINE), ("measured, its own (RssAnon)", ANON_LINE)] {
            y += LINE;
            canvas.line([ASIDE[0] - 2.0, y - 4.0, ASIDE[0] + 13.0, y - 4.0], how);
            row(canvas, y, name, "");
        }
    }
    let bottom = SIZE[1] - 14.0;
    let apart = elsewhere(step);
    let middle = if apart { y + (bottom - y) / 2.0 } else { bottom };
    list(canvas, plan, &step.peak, "Alive in the arena at the peak", [y + 1.8 * LINE, middle]);
    if apart {
        let words = format!("Alive where it is fullest, {:.3} s", step.time(&step.fullest));
        list(canvas, plan, &step.fullest, &words, [middle + 1.8 * LINE, bottom]);
    }
}

/// What is alive at a moment, largest first, as many as fit between two heights.
fn list(canvas: &mut Canvas, plan: &Plan, held: &Held, words: &str, [top, bottom]: [f64; 2]) {
    heading(canvas, top, words, &mib(held.used()));
    let groups = alive(plan, held.at);
    let room = ((bottom - top) / LINE).max(1.0) as usize;
    let shown = if groups.len() > room { room - 1 } else { groups.len() };
    let mut y = top;
    for group in &groups[..shown] {
        y += LINE;
        canvas.rect([ASIDE[0], y - 9.5, 11.0, 11.0], Band::Alive(group.kind).look().1);
        row(canvas, y, &group_words(group), &mib(group.bytes));
    }
    if shown < groups.len() {
        let rest = groups[shown..].iter().map(|group| group.bytes).sum();
        row(canvas, y + LINE, &format!("and {} more", groups.len() - shown), &mib(rest));
    }
}

/// Characters that fit before the figure.
const FIT: usize = 35;

fn group_words(group: &Group) -> String {
    let times = if group.count > 1 { format!(" ×{}", group.count) } else { String::new() };
    let (short, long) = match group.blocks {
        None => return format!("{}{times}", group.name),
        Some([first, last]) if first == last => (format!("{first}"), format!("block {first}")),
        Some([first, last]) => (format!("{first}–{last}"), format!("blocks {first}–{last}")),
    };
    let words = format!("{}{times}, {long}", group.name);
    if words.chars().count() <= FIT { words } else { format!("{}{times}, {short}", group.name) }
}

fn heading(canvas: &mut Canvas, y: f64, words: &str, figure: &str) {
    let how = format!("fill=\"{INK}\" font-weight=\"600\"");
    canvas.words([ASIDE[0], y], 12.0, "start", &how, words);
    canvas.words([ASIDE[1], y], 12.0, "end", &how, figure);
}

fn row(canvas: &mut Canvas, y: f64, words: &str, figure: &str) {
    let how = format!("fill=\"{INK}\"");
    canvas.words([ASIDE[0] + 18.0, y], 11.5, "start", &how, words);
    canvas.words([ASIDE[1], y], 11.5, "end", &how, figure);
}
