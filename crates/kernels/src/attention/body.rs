//! The sweeps of attention over tiles, whatever multiplies them. One side *owns* a tile: its rows are the lanes, and what is computed
//! for them is summed over the rows of the other side in ascending order. Queries own their outputs and their gradients, keys own
//! theirs and those of the values. Scores are `[other][owner]`, sums `[element][owner]`; so a maximum or a sum over keys
//! runs down the rows, and no lane ever needs its neighbour.
//!
//! Query heads that share keys meet each tile of them together. The products that end one head's turn come after the scores
//! of the next are begun, so that nobody waits for what was only just written.

use std::ops::Range;

use super::gradients::{Gradients, Half, all_gradients, key_gradient, query_gradient};
use super::kit::{GROUP, Kit, LANES, Lanes, Reach, SQUARE, To, View, padded};
use super::{Heads, Segment, TILE};
use crate::Values;
use crate::rows::Rows;

/// What a sweep reads.
#[derive(Clone, Copy)]
pub(super) struct Read<'a> {
    pub q: Values<'a>,
    pub k: Values<'a>,
    pub v: Values<'a>,
    pub lse: &'a [f32],
    pub go: Values<'a>,
    /// `Σ go o` of each (row, head).
    pub delta: &'a [f32],
}

/// A tile of rows that owns a sweep, or meets one: which rows of its segment, and its head.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub heads: Heads,
    pub segment: Segment,
    pub tile: usize,
    /// The first of its query heads.
    pub head: usize,
    /// Query heads that are worked on together; all share one key head.
    pub shared: usize,
}

/// One thread's memory, for a number of owners: two squares of scores, sums of each, rows on their way to the output, and two numbers
/// for each lane. Rows of elements come in whole tiles. What a thread keeps beyond a tile of queries is another part of its memory.
pub(super) struct Work<'a> {
    pub scores: [&'a mut [f32]; 2],
    pub sums: &'a mut [f32],
    pub rows: [&'a mut [f32]; 2],
    pub lanes: [&'a mut [f32]; 2],
    /// Gradients of keys and of values for some tiles of them, which stay here until all queries were met.
    pub kept: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Floats for `owners` heads of `d` elements, with two sums each: of halves of the keys, or of a tile of keys the gradients of keys and of values.
    pub fn len(d: usize, owners: usize) -> usize {
        2 * SQUARE + (2 * owners + 2) * TILE * padded(d) + 2 * owners * TILE
    }

    /// Cut from the front of `scratch`; the rest comes back.
    pub fn cut(scratch: &'a mut [f32], kept: &'a mut [f32], d: usize, owners: usize) -> (Self, &'a mut [f32]) {
        let size = TILE * padded(d);
        let (scores, rest) = scratch.split_at_mut(SQUARE);
        let (other, rest) = rest.split_at_mut(SQUARE);
        let (sums, rest) = rest.split_at_mut(2 * owners * size);
        let (first, rest) = rest.split_at_mut(size);
        let (second, rest) = rest.split_at_mut(size);
        let (tops, rest) = rest.split_at_mut(owners * TILE);
        let (totals, rest) = rest.split_at_mut(owners * TILE);
        (Self { scores: [scores, other], sums, rows: [first, second], lanes: [tops, totals], kept }, rest)
    }
}

/// What is computed.
pub(super) enum Sweep<'a> {
    /// A tile of queries: outputs and log-sum-exps.
    Forward { out: To<'a>, lse: &'a Rows<'a> },
    /// All gradients of a key head and the query heads that share it.
    All(Gradients<'a>),
    /// One half of that, while somebody may be at the other.
    Half(Gradients<'a>, Half<'a>),
    /// A tile of queries: theirs alone.
    Queries(Gradients<'a>),
    /// A tile of keys: theirs and those of the values.
    Keys(Gradients<'a>),
}

/// Runs a task.
#[inline(always)]
pub(super) fn run<'a, K: Kit<'a>>(kit: &mut K, task: Task, read: Read<'a>, sweep: Sweep, mut work: Work) {
    match sweep {
        Sweep::Forward { out, lse } => forward(kit, task, read, out, lse, work),
        Sweep::All(to) => all_gradients(kit, task, read, to, None, &mut work),
        Sweep::Half(to, half) => all_gradients(kit, task, read, to, Some(half), &mut work),
        Sweep::Queries(to) => query_gradient(kit, task, read, to, (&task.halves(), None, false), &mut work),
        Sweep::Keys(to) => key_gradient(kit, task, read, to, work),
    }
}

impl Task {
    /// Its heads one by one.
    pub fn each(self) -> impl Iterator<Item = Task> {
        (self.head..self.head + self.shared).map(move |head| Task { head, shared: 1, ..self })
    }

    /// The key head that its query heads share.
    pub fn kv_head(&self) -> usize {
        self.head / self.heads.shared()
    }

    pub fn q_width(&self) -> usize {
        self.heads.queries * self.heads.d
    }

    pub fn kv_width(&self) -> usize {
        self.heads.kv * self.heads.d
    }

    /// `len` rows of the segment, tile `tile`.
    pub fn rows(&self, len: usize) -> Range<usize> {
        self.tile * TILE..((self.tile + 1) * TILE).min(len)
    }

    /// Where row `row` of the segment's queries has the elements of `head`.
    pub fn q_at(&self, row: usize, head: usize) -> usize {
        (self.segment.q_start + row) * self.q_width() + head * self.heads.d
    }

    pub fn kv_at(&self, row: usize, kv_head: usize) -> usize {
        (self.segment.k_start + row) * self.kv_width() + kv_head * self.heads.d
    }

    /// The elements of a query head in some rows of the segment.
    pub fn queries<'a>(&self, x: Values<'a>, rows: &Range<usize>, head: usize) -> View<'a> {
        View { data: x.from(self.q_at(rows.start, head)), stride: self.q_width() }
    }

    /// The elements of a key head in some rows of the segment.
    pub fn keys<'a>(&self, x: Values<'a>, rows: &Range<usize>, kv_head: usize) -> View<'a> {
        View { data: x.from(self.kv_at(rows.start, kv_head)), stride: self.kv_width() }
    }

    pub fn lse_at(&self, row: usize, head: usize) -> usize {
        (self.segment.q_start + row) * self.heads.queries + head
    }

    /// The tiles of keys that any of `rows` sees.
    pub fn key_tiles(&self, rows: &Range<usize>) -> Range<usize> {
        let first = self.segment.seen(rows.start, self.heads.window).start / TILE;
        first..self.segment.seen(rows.end - 1, self.heads.window).end.div_ceil(TILE)
    }

    /// The keys of a tile that any of `rows` sees, from a multiple of the tile size on.
    pub fn keys_of(&self, tile: usize, rows: &Range<usize>) -> Range<usize> {
        tile * TILE..((tile + 1) * TILE).min(self.segment.seen(rows.end - 1, self.heads.window).end)
    }

    /// Whether each of `queries` sees all of `keys`.
    pub fn all_seen(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let window = self.heads.window;
        self.segment.seen(queries.start, window).end >= keys.end
            && self.segment.seen(queries.end - 1, window).start <= keys.start
    }
}

/// How many of `keys` each group of the lanes `queries` sees, in whole steps of a sum: what lies on the other side of the diagonal is left out.
#[inline(always)]
pub(super) fn reach(task: &Task, queries: &Range<usize>, keys: &Range<usize>) -> Reach {
    let mut reach = [0; TILE / GROUP];
    for (first, reach) in (queries.start..queries.end).step_by(GROUP).zip(&mut reach) {
        let last = queries.end.min(first + GROUP) - 1;
        let seen = task.segment.seen(last, task.heads.window).end.clamp(keys.start + 1, keys.end) - keys.start;
        *reach = seen.next_multiple_of(GROUP).min(keys.len());
    }
    reach
}

/// The part of `all` inside `seen`, counted from the start of `all`.
pub(super) fn visible(seen: Range<usize>, all: &Range<usize>) -> Range<usize> {
    let end = seen.end.clamp(all.start, all.end) - all.start;
    (seen.start.clamp(all.start, all.end) - all.start).min(end)..end
}

/// Hides the scores of pairs that don't see each other; `seen` says which lanes a row sees. A row after the last of an odd number
/// is hidden whole.
#[inline(always)]
pub(super) fn hide(scores: &mut [f32], rows: usize, lanes: usize, all: bool, seen: impl Fn(usize) -> Range<usize>) {
    if !all {
        for (r, row) in scores.chunks_exact_mut(TILE).enumerate().take(rows) {
            let seen = seen(r);
            row[..seen.start].fill(f32::NEG_INFINITY);
            row[seen.end..lanes].fill(f32::NEG_INFINITY);
        }
    }
    if rows % 2 == 1 {
        scores[rows * TILE..][..lanes].fill(f32::NEG_INFINITY);
    }
}

/// A group of lanes of a row.
#[inline(always)]
pub(super) fn group<L: Lanes>(row: &[f32]) -> [L; 2] {
    [L::load(row), L::load(&row[LANES..])]
}

/// A tile of queries, for all heads that share their keys: outputs and log-sum-exps.
#[inline(always)]
fn forward<'a, K: Kit<'a>>(kit: &mut K, task: Task, read: Read<'a>, out: To, lse: &Rows, work: Work) {
    let (segment, heads) = (task.segment, task.heads);
    let rows = task.rows(segment.q_len);
    let lanes = rows.len().next_multiple_of(GROUP);
    let kv_head = task.kv_head();
    let Work { scores: [scores, _], sums, lanes: [tops, totals], .. } = work;
    let size = TILE * padded(heads.d);
    for owner in 0..task.shared {
        kit.own(owner, 0, task.queries(read.q, &rows, task.head + owner), rows.len());
    }
    tops.fill(f32::NEG_INFINITY);
    totals.fill(0.0);
    let mut begins = true;
    for tile in task.key_tiles(&rows) {
        let keys = task.keys_of(tile, &rows);
        if !kit.turn_to(tile, keys.len()) {
            kit.meet(0, task.keys(read.k, &keys, kv_head), keys.len());
            kit.meet_turned(0, task.keys(read.v, &keys, kv_head), keys.len());
        }
        let (all, reach) = (task.all_seen(&rows, &keys), reach(&task, &rows, &keys));
        for (owner, (top, total)) in tops.chunks_exact_mut(TILE).zip(totals.chunks_exact_mut(TILE)).enumerate() {
            kit.scores(owner, 0, reach, lanes, scores);
            if owner > 0 {
                kit.add(0, 0, reach, lanes, begins, &mut sums[(owner - 1) * size..][..size]);
            }
            hide(scores, keys.len(), lanes, all, |r| {
                visible(segment.seeing(keys.start + r..keys.start + r + 1, heads.window), &rows)
            });
            let sums = if begins { &mut [] } else { &mut sums[owner * size..][..size] };
            softmax(kit, (scores, reach), lanes, heads.scale, (top, total), sums);
        }
        kit.add(0, 0, reach, lanes, begins, &mut sums[(task.shared - 1) * size..][..size]);
        begins = false;
    }
    for owner in 0..task.shared {
        let (top, total) = (&tops[owner * TILE..][..TILE], &mut totals[owner * TILE..][..TILE]);
        for (i, row) in rows.clone().enumerate() {
            let at = task.lse_at(row, task.head + owner);
            // SAFETY: (row, head) belongs to this task alone.
            let lse = unsafe { lse.range(at..at + 1) };
            lse[0] = top[i].mul_add(heads.scale, total[i].ln());
        }
        total.iter_mut().for_each(|total| *total = 1.0 / *total);
        let place = task.q_at(rows.start, task.head + owner);
        kit.finish(&sums[owner * size..], total, rows.len(), out, (place, task.q_width()));
    }
}

/// How far a score may lie above what its lane's are relative to, in the exponent: sums of exponentials as large are as good, and shrinking what was summed
/// before at every new highest score is a pass over all of it.
const HEADROOM: f32 = 8.0;

/// Turns scores into probabilities relative to the highest score of their lane so far, or one that is not much lower, and shrinks what was summed before.
#[inline(always)]
fn softmax<'a, K: Kit<'a>>(
    kit: &mut K,
    (scores, reach): (&[f32], Reach),
    lanes: usize,
    scale: f32,
    (top, total): (&mut [f32], &mut [f32]),
    sums: &mut [f32],
) {
    let headroom = HEADROOM / (scale * K::Lanes::UNIT);
    let scale = K::Lanes::all(scale * K::Lanes::UNIT);
    let mut shrinks = [1.0; TILE];
    for (first, rows) in (0..lanes).step_by(GROUP).zip(reach) {
        let before: [K::Lanes; 2] = group(&top[first..]);
        let mut highest = before;
        for row in scores.chunks_exact(TILE).take(rows) {
            let row: [K::Lanes; 2] = group(&row[first..]);
            highest = [row[0].max(highest[0]), row[1].max(highest[1])];
        }
        highest = [highest[0].raised(before[0], headroom), highest[1].raised(before[1], headroom)];
        // A lane that has seen nothing yet has no highest score; any finite one gives zeros.
        let mut base = highest;
        for base in &mut base {
            *base = base.max(K::Lanes::all(f32::MIN)).mul(scale).mul(K::Lanes::all(-1.0));
        }
        let mut sum = [K::Lanes::all(0.0); 2];
        for (r, pair) in scores.chunks_exact(2 * TILE).enumerate().take(rows.div_ceil(2)) {
            let mut weights = [[scale; 2]; 2];
            for (row, weights) in weights.iter_mut().enumerate() {
                for half in 0..2 {
                    let s = K::Lanes::load(&pair[row * TILE + first + half * LANES..]);
                    weights[half] = s.mul_add(scale, base[half]).exp();
                    sum[half] = sum[half].add(weights[half]);
                }
            }
            kit.weigh(0, 2 * r, first, weights);
        }
        for (half, at) in [first, first + LANES].into_iter().enumerate() {
            let shrink = before[half].mul(scale).add(base[half]).exp();
            K::Lanes::load(&total[at..]).mul_add(shrink, sum[half]).store(&mut total[at..]);
            highest[half].store(&mut top[at..]);
            shrink.store(&mut shrinks[at..]);
        }
    }
    if shrinks != [1.0; TILE] {
        for row in sums.chunks_exact_mut(TILE) {
            for first in (0..lanes).step_by(LANES) {
                K::Lanes::load(&row[first..]).mul(K::Lanes::load(&shrinks[first..])).store(&mut row[first..]);
            }
        }
    }
}
