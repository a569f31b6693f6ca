//! The sweeps of attention over tiles, whatever multiplies them. One side *owns* a tile: its rows are the lanes, and what is computed
//! for them is summed over the rows of the other side in ascending order. Queries own their outputs and their gradients, keys own
//! theirs and those of the values. Scores are `[other][owner]`, sums `[element][owner]`; so a maximum or a sum over keys
//! runs down the rows, and no lane ever needs its neighbour.
//!
//! Query heads that share keys meet each tile of them together. The products that end one head's turn come after the scores
//! of the next are begun, so that nobody waits for what was only just written.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

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
    scores: [&'a mut [f32]; 2],
    sums: &'a mut [f32],
    rows: [&'a mut [f32]; 2],
    lanes: [&'a mut [f32]; 2],
    /// Gradients of keys and of values for some tiles of them, which stay here until all queries were met.
    kept: &'a mut [f32],
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

/// Where gradients go.
#[derive(Clone, Copy)]
pub(super) struct Gradients<'a> {
    pub gq: &'a Rows<'a>,
    pub gk: &'a Rows<'a>,
    pub gv: &'a Rows<'a>,
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

/// One of the two parts of a key head's keys, with all queries that see them.
#[derive(Clone, Copy)]
pub(super) struct Half<'a> {
    /// The first, 0, or the second.
    pub which: usize,
    /// For each tile of queries, how far its gradient is.
    pub met: &'a [AtomicU8],
}

impl Half<'_> {
    /// Whether the other half's part of the gradient of a tile of queries is there, and this one is to be added. It comes between this and [`Half::left`]; a sum of
    /// two is the same whoever comes first.
    #[inline(always)]
    fn second(self, tile: usize) -> bool {
        let met = &self.met[tile];
        let second = met.compare_exchange(NOBODY, COMING, Ordering::Acquire, Ordering::Acquire).is_err();
        let mut looks = 0;
        while second && met.load(Ordering::Acquire) != THERE {
            looks += 1;
            // Writing a tile takes a microsecond, unless whoever is at it has lost its core.
            if looks < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        second
    }

    #[inline(always)]
    fn left(self, tile: usize) {
        self.met[tile].store(THERE, Ordering::Release);
    }
}

/// How far the gradient of a tile of queries is that two halves bring together.
const NOBODY: u8 = 0;
const COMING: u8 = 1;
const THERE: u8 = 2;

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

    fn q_width(&self) -> usize {
        self.heads.queries * self.heads.d
    }

    fn kv_width(&self) -> usize {
        self.heads.kv * self.heads.d
    }

    /// `len` rows of the segment, tile `tile`.
    fn rows(&self, len: usize) -> Range<usize> {
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
    fn queries<'a>(&self, x: Values<'a>, rows: &Range<usize>, head: usize) -> View<'a> {
        View { data: x.from(self.q_at(rows.start, head)), stride: self.q_width() }
    }

    /// The elements of a key head in some rows of the segment.
    fn keys<'a>(&self, x: Values<'a>, rows: &Range<usize>, kv_head: usize) -> View<'a> {
        View { data: x.from(self.kv_at(rows.start, kv_head)), stride: self.kv_width() }
    }

    pub fn lse_at(&self, row: usize, head: usize) -> usize {
        (self.segment.q_start + row) * self.heads.queries + head
    }

    /// The tiles of keys that any of `rows` sees.
    fn key_tiles(&self, rows: &Range<usize>) -> Range<usize> {
        let first = self.segment.seen(rows.start, self.heads.window).start / TILE;
        first..self.segment.seen(rows.end - 1, self.heads.window).end.div_ceil(TILE)
    }

    /// The keys of a tile that any of `rows` sees, from a multiple of the tile size on.
    fn keys_of(&self, tile: usize, rows: &Range<usize>) -> Range<usize> {
        tile * TILE..((tile + 1) * TILE).min(self.segment.seen(rows.end - 1, self.heads.window).end)
    }

    /// All tiles of keys, in two parts with about as many pairs of a tile of keys and one of queries.
    fn halves(&self) -> [Range<usize>; 2] {
        let (length, tiles) = (self.segment.k_len, self.segment.k_len.div_ceil(TILE));
        let pairs = |tile: usize| {
            let seeing = self.segment.seeing(tile * TILE..((tile + 1) * TILE).min(length), self.heads.window);
            seeing.end.div_ceil(TILE).saturating_sub(seeing.start / TILE)
        };
        let (all, mut first, mut before) = ((0..tiles).map(pairs).sum::<usize>(), 0, 0);
        while first + 1 < tiles && 2 * before + pairs(first) <= all {
            (first, before) = (first + 1, before + pairs(first));
        }
        [0..first, first..tiles]
    }

    /// Whether each of `queries` sees all of `keys`.
    fn all_seen(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let window = self.heads.window;
        self.segment.seen(queries.start, window).end >= keys.end
            && self.segment.seen(queries.end - 1, window).start <= keys.start
    }
}

/// How many of `keys` each group of the lanes `queries` sees, in whole steps of a sum: what lies on the other side of the diagonal is left out.
#[inline(always)]
fn reach(task: &Task, queries: &Range<usize>, keys: &Range<usize>) -> Reach {
    let mut reach = [0; TILE / GROUP];
    for (first, reach) in (queries.start..queries.end).step_by(GROUP).zip(&mut reach) {
        let last = queries.end.min(first + GROUP) - 1;
        let seen = task.segment.seen(last, task.heads.window).end.clamp(keys.start + 1, keys.end) - keys.start;
        *reach = seen.next_multiple_of(GROUP).min(keys.len());
    }
    reach
}

/// The part of `all` inside `seen`, counted from the start of `all`.
fn visible(seen: Range<usize>, all: &Range<usize>) -> Range<usize> {
    let end = seen.end.clamp(all.start, all.end) - all.start;
    (seen.start.clamp(all.start, all.end) - all.start).min(end)..end
}

/// Hides the scores of pairs that don't see each other; `seen` says which lanes a row sees. A row after the last of an odd number
/// is hidden whole.
#[inline(always)]
fn hide(scores: &mut [f32], rows: usize, lanes: usize, all: bool, seen: impl Fn(usize) -> Range<usize>) {
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
fn group<L: Lanes>(row: &[f32]) -> [L; 2] {
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

/// A tile of queries, for all heads that share their keys: their gradients, in as many sums as there are `parts` of keys, and with `keys_too` what
/// they add to gradients of keys and values. Where that is one `half`, whoever is at the other adds his.
#[inline(always)]
fn query_gradient<'a, K: Kit<'a>>(
    kit: &mut K,
    task: Task,
    read: Read<'a>,
    to: Gradients,
    (parts, half, keys_too): (&[Range<usize>], Option<Half>, bool),
    work: &mut Work,
) {
    let heads = task.heads;
    let rows = task.rows(task.segment.q_len);
    let seen = task.key_tiles(&rows);
    let parts = parts.iter().map(|part| seen.start.max(part.start)..seen.end.min(part.end));
    let parts = parts.filter(|part| !part.is_empty());
    if parts.clone().next().is_none() {
        return;
    }
    let [lse, delta] = &mut work.lanes;
    lse.fill(0.0);
    delta.fill(0.0);
    for owner in 0..task.shared {
        let [q, go] = [read.q, read.go].map(|x| task.queries(x, &rows, task.head + owner));
        for (which, x) in [(0, q), (1, go)] {
            kit.own(owner, which, x, rows.len());
            if keys_too {
                kit.own_across(owner, which, x, rows.len());
            }
        }
        for (i, row) in (owner * TILE..).zip(rows.clone()) {
            let at = task.lse_at(row, task.head + owner);
            (lse[i], delta[i]) = (-read.lse[at] * K::Lanes::UNIT, -read.delta[at] * heads.scale);
        }
    }
    let len = task.shared * TILE * padded(heads.d);
    let mut sums = 0;
    for tiles in parts {
        let first = tiles.start;
        for tile in tiles {
            meet_keys(kit, (task, tile), read, to, (sums * len, tile == first, keys_too), work);
        }
        sums += 1;
    }
    let (own, others) = work.sums.split_at_mut(len);
    if sums == 2 {
        for (own, other) in own.chunks_exact_mut(LANES).zip(others.chunks_exact(LANES)) {
            K::Lanes::load(own).add(K::Lanes::load(other)).store(own);
        }
    }
    let gq = if half.is_some_and(|half| half.second(task.tile)) { To::Add(to.gq) } else { To::Write(to.gq) };
    for (owner, sums) in own.chunks_exact(TILE * padded(heads.d)).enumerate() {
        let place = (task.q_at(rows.start, task.head + owner), task.q_width());
        kit.finish(sums, &[1.0; TILE], rows.len(), gq, place);
    }
    if let Some(half) = half {
        half.left(task.tile);
    }
}

/// The owners of [`query_gradient`] meet a tile of keys, with which their sums, at `sums_at`, may begin.
#[inline(always)]
fn meet_keys<'a, K: Kit<'a>>(
    kit: &mut K,
    (task, tile): (Task, usize),
    read: Read<'a>,
    to: Gradients,
    (sums_at, begins, keys_too): (usize, bool, bool),
    work: &mut Work,
) {
    let (segment, heads, kv_head) = (task.segment, task.heads, task.kv_head());
    let rows = task.rows(segment.q_len);
    let keys = task.keys_of(tile, &rows);
    let lanes = rows.len().next_multiple_of(GROUP);
    let Work { scores: [scores, gp], sums, rows: [gk_rows, gv_rows], lanes: [lse, delta], kept } = work;
    let (sums, size) = (&mut sums[sums_at..], TILE * padded(heads.d));
    if !kit.turn_to(tile, keys.len()) {
        let [k, v] = [read.k, read.v].map(|x| task.keys(x, &keys, kv_head));
        kit.meet(0, k, keys.len());
        kit.meet(1, v, keys.len());
        kit.meet_turned(0, k, keys.len());
    }
    let place = (task.kv_at(keys.start, kv_head), task.kv_width());
    // Where a thread does not keep them until it has met all queries, they come and go.
    let comes = keys_too && tile >= kept.len() / (2 * size);
    let [gk_rows, gv_rows] = match kept.chunks_exact_mut(2 * size).nth(tile) {
        Some(both) => both.split_at_mut(size).into(),
        None => [&mut **gk_rows, &mut **gv_rows],
    };
    if comes {
        take(to.gk, place, heads.d, keys.len(), gk_rows);
        take(to.gv, place, heads.d, keys.len(), gv_rows);
    }
    let (all, reach) = (task.all_seen(&rows, &keys), reach(&task, &rows, &keys));
    let met = (reach, lanes);
    for owner in 0..task.shared {
        kit.scores(owner, 0, reach, lanes, scores);
        kit.scores(owner, 1, reach, lanes, gp);
        if owner > 0 {
            let (sums, rows) = (&mut sums[(owner - 1) * size..][..size], [&mut *gk_rows, &mut *gv_rows]);
            end_turn(kit, owner - 1, met, begins, sums, keys_too.then_some(rows));
        }
        hide(scores, keys.len(), lanes, all, |r| {
            visible(segment.seeing(keys.start + r..keys.start + r + 1, heads.window), &rows)
        });
        let (lse, delta) = (&lse[owner * TILE..], &delta[owner * TILE..]);
        for (first, rows) in (0..lanes).step_by(GROUP).zip(reach) {
            let of: [[K::Lanes; 2]; 2] = [group(&lse[first..]), group(&delta[first..])];
            for r in (0..rows).step_by(2) {
                let (p, gs) = pair::<K::Lanes>(scores, gp, r * TILE + first, heads.scale, [of; 2]);
                kit.weigh(1, r, first, gs);
                if keys_too {
                    kit.weigh_across(0, r, first, p);
                    kit.weigh_across(1, r, first, gs);
                }
            }
        }
    }
    let sums = &mut sums[(task.shared - 1) * size..][..size];
    end_turn(kit, task.shared - 1, met, begins, sums, keys_too.then_some([&mut *gk_rows, &mut *gv_rows]));
    if comes {
        give(gk_rows, to.gk, place, heads.d, keys.len());
        give(gv_rows, to.gv, place, heads.d, keys.len());
    }
}

/// The products with the weights of an owner: its own sums, and what it adds to rows of keys and values.
#[inline(always)]
fn end_turn<'a, K: Kit<'a>>(
    kit: &mut K,
    owner: usize,
    (reach, lanes): (Reach, usize),
    begins: bool,
    sums: &mut [f32],
    to: Option<[&mut [f32]; 2]>,
) {
    kit.add(0, 1, reach, lanes, begins, sums);
    if let Some([gk, gv]) = to {
        kit.across(owner, 0, 1, reach, lanes, gk);
        kit.across(owner, 1, 0, reach, lanes, gv);
    }
}

/// Probabilities and gradients of scores, of two rows and a group of lanes from `at` on. `of[row]` has what is added to a score and to
/// the gradient of a probability: minus log-sum-exp, in units, and minus `Σ go o`, scaled.
#[inline(always)]
fn pair<L: Lanes>(
    scores: &[f32],
    gp: &[f32],
    at: usize,
    scale: f32,
    of: [[[L; 2]; 2]; 2],
) -> ([[L; 2]; 2], [[L; 2]; 2]) {
    let (in_units, scale) = (L::all(scale * L::UNIT), L::all(scale));
    let (mut p, mut gs) = ([[scale; 2]; 2], [[scale; 2]; 2]);
    for (row, [lse, delta]) in of.into_iter().enumerate() {
        for half in 0..2 {
            let at = at + row * TILE + half * LANES;
            p[row][half] = L::load(&scores[at..]).mul_add(in_units, lse[half]).exp();
            gs[row][half] = L::load(&gp[at..]).mul_add(scale, delta[half]).mul(p[row][half]);
        }
    }
    (p, gs)
}

/// A tile of keys: their gradients and those of the values, summed over all queries that see them, and their heads.
#[inline(always)]
fn key_gradient<'a, K: Kit<'a>>(kit: &mut K, task: Task, read: Read<'a>, to: Gradients, work: Work) {
    let (segment, heads, kv_head) = (task.segment, task.heads, task.kv_head());
    let keys = task.rows(segment.k_len);
    let lanes = keys.len().next_multiple_of(GROUP);
    let Work { scores: [scores, gp], sums, .. } = work;
    let (gk_sums, gv_sums) = sums[..2 * TILE * padded(heads.d)].split_at_mut(TILE * padded(heads.d));
    kit.own(0, 0, task.keys(read.k, &keys, kv_head), keys.len());
    kit.own(0, 1, task.keys(read.v, &keys, kv_head), keys.len());
    let mut begins = true;
    let seeing = segment.seeing(keys.clone(), heads.window);
    for first in (seeing.start / TILE * TILE..seeing.end).step_by(TILE) {
        // The whole tile, whoever of it sees these keys.
        let rows = first..(first + TILE).min(segment.q_len);
        let all = lanes == keys.len() && task.all_seen(&rows, &keys);
        for head in task.head..task.head + task.shared {
            for (which, x) in [(0, read.q), (1, read.go)] {
                let x = task.queries(x, &rows, head);
                kit.meet(which, x, rows.len());
                kit.meet_turned(which, x, rows.len());
            }
            let reach = [rows.len(); TILE / GROUP];
            kit.scores(0, 0, reach, lanes, scores);
            kit.scores(0, 1, reach, lanes, gp);
            hide(scores, rows.len(), lanes, all, |r| visible(segment.seen(rows.start + r, heads.window), &keys));
            for r in (0..rows.len()).step_by(2) {
                let mut of = [[[K::Lanes::all(0.0); 2]; 2]; 2];
                for (of, row) in of.iter_mut().zip(rows.start + r..rows.end) {
                    let at = task.lse_at(row, head);
                    let (lse, delta) = (-read.lse[at] * K::Lanes::UNIT, -read.delta[at] * heads.scale);
                    *of = [[K::Lanes::all(lse); 2], [K::Lanes::all(delta); 2]];
                }
                for first in (0..lanes).step_by(GROUP) {
                    let (p, gs) = pair(scores, gp, r * TILE + first, heads.scale, of);
                    kit.weigh(0, r, first, p);
                    kit.weigh(1, r, first, gs);
                }
            }
            kit.add(1, 0, reach, lanes, begins, gv_sums);
            kit.add(0, 1, reach, lanes, begins, gk_sums);
            begins = false;
        }
    }
    for (to, sums) in [(to.gk, gk_sums), (to.gv, gv_sums)] {
        let place = (task.kv_at(keys.start, kv_head), task.kv_width());
        kit.finish(sums, &[1.0; TILE], keys.len(), To::Write(to), place);
    }
}

/// All gradients of a key head and the query heads that share it, or of one half of its keys, in one sweep: what [`query_gradient`] and
/// [`key_gradient`] give, to the bit, from one computation of the scores. Tiles of queries come in ascending order, so gradients of keys are summed in it.
#[inline(always)]
fn all_gradients<'a, K: Kit<'a>>(
    kit: &mut K,
    task: Task,
    read: Read<'a>,
    to: Gradients,
    half: Option<Half>,
    work: &mut Work,
) {
    let (d, size, length) = (task.heads.d, TILE * padded(task.heads.d), task.segment.k_len);
    let halves = task.halves();
    let parts = half.map_or(&halves[..], |half| &halves[half.which..=half.which]);
    let tiles = parts[0].start..parts[parts.len() - 1].end;
    let kept = work.kept.len() / (2 * size);
    work.kept[tiles.start.min(kept) * 2 * size..tiles.end.min(kept) * 2 * size].fill(0.0);
    for row in tiles.start.max(kept) * TILE..(tiles.end * TILE).min(length) {
        let at = task.kv_at(row, task.kv_head());
        for to in [to.gk, to.gv] {
            // SAFETY: the rows of these keys belong to this task alone.
            unsafe { to.range(at..at + d) }.fill(0.0);
        }
    }
    for tile in 0..task.segment.q_len.div_ceil(TILE) {
        query_gradient(kit, Task { tile, ..task }, read, to, (parts, half, true), work);
    }
    for (tile, both) in work.kept.chunks_exact(2 * size).enumerate().take(tiles.end).skip(tiles.start) {
        let first = tile * TILE;
        let (place, rows) = ((task.kv_at(first, task.kv_head()), task.kv_width()), TILE.min(length - first));
        give(&both[..size], to.gk, place, d, rows);
        give(&both[size..], to.gv, place, d, rows);
    }
}

/// Brings rows of an output into a thread's memory. The caller owns them.
#[inline(always)]
fn take(from: &Rows, (at, stride): (usize, usize), d: usize, rows: usize, to: &mut [f32]) {
    for (row, to) in to.chunks_exact_mut(padded(d)).enumerate().take(rows) {
        // SAFETY: the caller owns these rows.
        to[..d].copy_from_slice(unsafe { from.range(at + row * stride..at + row * stride + d) });
    }
}

/// And back.
#[inline(always)]
fn give(from: &[f32], to: &Rows, (at, stride): (usize, usize), d: usize, rows: usize) {
    for (row, from) in from.chunks_exact(padded(d)).enumerate().take(rows) {
        // SAFETY: the caller owns these rows.
        unsafe { to.range(at + row * stride..at + row * stride + d) }.copy_from_slice(&from[..d]);
    }
}
