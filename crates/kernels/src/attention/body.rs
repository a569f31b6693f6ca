//! The sweeps of attention over tiles, whatever multiplies them. One side *owns* a tile: its rows are the lanes, and what is computed
//! for them is summed over the rows of the other side in ascending order. Queries own their outputs and their gradients, keys own
//! theirs and those of the values. Scores are `[other][owner]`, sums `[element][owner]`; so a maximum or a sum over keys
//! runs down the rows, and no lane ever needs its neighbour.

use std::array::from_fn;
use std::ops::Range;

use super::{Heads, Segment, TILE};
use crate::rows::Rows;
use crate::tile::View;

/// Lanes that are worked on together, in loops of fixed length.
pub(super) const LANES: usize = 16;

/// Elements of a head with what rows of [`Kit::across`] have after them.
pub(super) const fn padded(d: usize) -> usize {
    d.next_multiple_of(32)
}

/// Lanes `first..` of a row.
#[inline(always)]
fn lanes_of(row: &[f32], first: usize) -> &[f32; LANES] {
    row[first..].first_chunk().expect("rows have whole groups of lanes")
}

#[inline(always)]
fn lanes_of_mut(row: &mut [f32], first: usize) -> &mut [f32; LANES] {
    row[first..].first_chunk_mut().expect("rows have whole groups of lanes")
}

/// How small products are made, and exponentials.
pub(super) trait Kit {
    /// Takes `rows` rows of the owner as operand `slot` (0 or 1) of the scores to come.
    fn own(&mut self, slot: usize, x: View, rows: usize);
    /// `scores[r][lane] = y[r] x[lane]` for `rows` rows of the other side and the owner's rows in `slot`.
    fn scores(&mut self, slot: usize, y: View, rows: usize, lanes: usize, scores: &mut [f32]);
    /// `sums[e][lane] += z[r][e] w[r][lane]`, summed over `rows` rows.
    fn add(&mut self, z: View, rows: usize, w: &[f32], lanes: usize, sums: &mut [f32]);
    /// Takes `rows` rows of the owner as the operand of [`Kit::across`].
    fn own_across(&mut self, x: View, rows: usize);
    /// `c[r][e] += w[r][lane] x[lane][e]`, summed over the lanes; rows of `c` are as long as [`padded`] says.
    fn across(&mut self, w: &[f32], rows: usize, lanes: usize, c: &mut [f32]);
    /// e to the power of each, at least as good as sums of this kit's products; nothing near zero for minus infinity.
    fn exps(x: [f32; LANES]) -> [f32; LANES];
    /// `to[lane][e] = sums[e][lane] factor[lane]` for `rows` lanes; row `lane` begins at `at + lane stride`, and the caller owns it.
    fn finish(&mut self, sums: &[f32], factor: &[f32; TILE], rows: usize, to: &Rows, at: usize, stride: usize);
}

/// What a sweep reads.
#[derive(Clone, Copy)]
pub(super) struct Read<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub lse: &'a [f32],
    pub go: &'a [f32],
    /// `Σ go o` of each (row, head).
    pub delta: &'a [f32],
}

/// A tile of rows that owns a sweep, or meets one: which rows of its segment, and its head.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub heads: Heads,
    pub segment: Segment,
    pub tile: usize,
    pub head: usize,
}

/// One thread's memory: two squares of scores, two sums, and rows on their way to the output, all with whole tiles of elements.
pub(super) struct Work<'a> {
    scores: &'a mut [f32],
    other: &'a mut [f32],
    sums: [&'a mut [f32]; 2],
    rows: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Floats for heads of `d` elements.
    pub const fn len(d: usize) -> usize {
        2 * TILE * TILE + 3 * TILE * padded(d)
    }

    /// Cut from the front of `scratch`; the rest comes back.
    pub fn cut(scratch: &'a mut [f32], d: usize) -> (Self, &'a mut [f32]) {
        let d = padded(d);
        let (scores, rest) = scratch.split_at_mut(TILE * TILE);
        let (other, rest) = rest.split_at_mut(TILE * TILE);
        let (first, rest) = rest.split_at_mut(TILE * d);
        let (second, rest) = rest.split_at_mut(TILE * d);
        let (rows, rest) = rest.split_at_mut(TILE * d);
        (Self { scores, other, sums: [first, second], rows }, rest)
    }
}

impl Task {
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

    pub fn lse_at(&self, row: usize, head: usize) -> usize {
        (self.segment.q_start + row) * self.heads.queries + head
    }

    /// The tiles of keys that any of `rows` sees, at multiples of the tile size.
    fn key_tiles(&self, rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let first = self.segment.seen(rows.start, self.heads.window).start / TILE;
        let end = self.segment.seen(rows.end - 1, self.heads.window).end;
        (first..end.div_ceil(TILE)).map(move |tile| tile * TILE..((tile + 1) * TILE).min(end))
    }

    /// Whether each of `queries` sees all of `keys`.
    fn all_seen(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let window = self.heads.window;
        self.segment.seen(queries.start, window).end >= keys.end
            && self.segment.seen(queries.end - 1, window).start <= keys.start
    }
}

/// The part of `all` inside `seen`, counted from the start of `all`.
fn visible(seen: Range<usize>, all: &Range<usize>) -> Range<usize> {
    let end = seen.end.clamp(all.start, all.end) - all.start;
    (seen.start.clamp(all.start, all.end) - all.start).min(end)..end
}

/// Writes `with` to the lanes of a row that are not `visible`.
fn hide(row: &mut [f32], visible: Range<usize>, with: f32) {
    row[..visible.start].fill(with);
    row[visible.end..].fill(with);
}

/// A tile of queries: outputs and log-sum-exps.
#[inline(always)]
pub(super) fn forward<K: Kit>(kit: &mut K, task: Task, read: Read, out: &Rows<'_>, lse: &Rows<'_>, work: Work) {
    let (segment, heads) = (task.segment, task.heads);
    let rows = task.rows(segment.q_len);
    let lanes = rows.len().next_multiple_of(LANES);
    let kv_head = task.head / (heads.queries / heads.kv);
    let (scores, [sums, _]) = (work.scores, work.sums);
    kit.own(0, View { data: &read.q[task.q_at(rows.start, task.head)..], stride: task.q_width() }, rows.len());
    sums.fill(0.0);
    let (mut top, mut total) = ([f32::NEG_INFINITY; TILE], [0.0; TILE]);
    for keys in task.key_tiles(&rows) {
        let at = task.kv_at(keys.start, kv_head);
        let (k, v) = (&read.k[at..], &read.v[at..]);
        kit.scores(0, View { data: k, stride: task.kv_width() }, keys.len(), lanes, scores);
        if !task.all_seen(&rows, &keys) {
            for (row, key) in scores.chunks_exact_mut(TILE).zip(keys.clone()) {
                hide(&mut row[..lanes], visible(segment.seeing(key..key + 1, heads.window), &rows), f32::NEG_INFINITY);
            }
        }
        softmax::<K>(&mut scores[..keys.len() * TILE], lanes, heads.scale, &mut top, &mut total, sums);
        kit.add(View { data: v, stride: task.kv_width() }, keys.len(), scores, lanes, sums);
    }
    let factor = total.map(|total| 1.0 / total);
    kit.finish(sums, &factor, rows.len(), out, task.q_at(rows.start, task.head), task.q_width());
    for (i, row) in rows.enumerate() {
        let at = task.lse_at(row, task.head);
        // SAFETY: (row, head) belongs to this task alone.
        let lse = unsafe { lse.range(at..at + 1) };
        lse[0] = top[i] + total[i].ln();
    }
}

/// Turns scores into probabilities relative to the running maximum of their lane, and shrinks what was summed before.
#[inline(always)]
fn softmax<K: Kit>(
    scores: &mut [f32],
    lanes: usize,
    scale: f32,
    top: &mut [f32; TILE],
    total: &mut [f32; TILE],
    sums: &mut [f32],
) {
    let mut shrinks = [1.0; TILE];
    for first in (0..lanes).step_by(LANES) {
        let mut highest = *lanes_of(top, first);
        for row in scores.chunks_exact(TILE) {
            let row = lanes_of(row, first);
            for lane in 0..LANES {
                let x = row[lane] * scale;
                highest[lane] = if x > highest[lane] { x } else { highest[lane] };
            }
        }
        // A lane that has seen nothing yet has no maximum; any finite one gives zeros.
        let base = highest.map(|x| if x == f32::NEG_INFINITY { 0.0 } else { x });
        let before = *lanes_of(top, first);
        let shrink = K::exps(from_fn(|lane| before[lane] - base[lane]));
        let mut sum = [0.0; LANES];
        for row in scores.chunks_exact_mut(TILE) {
            let row = lanes_of_mut(row, first);
            *row = K::exps(from_fn(|lane| row[lane].mul_add(scale, -base[lane])));
            for lane in 0..LANES {
                sum[lane] += row[lane];
            }
        }
        for lane in 0..LANES {
            total[first + lane] = total[first + lane].mul_add(shrink[lane], sum[lane]);
        }
        *lanes_of_mut(top, first) = highest;
        *lanes_of_mut(&mut shrinks, first) = shrink;
    }
    if shrinks != [1.0; TILE] {
        // The length is not constant here on purpose: unrolled, this becomes a loop over rows with scattered loads.
        for row in sums.chunks_exact_mut(TILE) {
            for (x, shrink) in row[..lanes].iter_mut().zip(&shrinks[..lanes]) {
                *x *= shrink;
            }
        }
    }
}

/// A tile of queries: their gradients.
#[inline(always)]
pub(super) fn query_gradient<K: Kit>(kit: &mut K, task: Task, read: Read, gq: &Rows<'_>, work: Work) {
    let (segment, heads) = (task.segment, task.heads);
    let rows = task.rows(segment.q_len);
    let lanes = rows.len().next_multiple_of(LANES);
    let kv_head = task.head / (heads.queries / heads.kv);
    let (scores, gp, [sums, _]) = (work.scores, work.other, work.sums);
    let at = task.q_at(rows.start, task.head);
    kit.own(0, View { data: &read.q[at..], stride: task.q_width() }, rows.len());
    kit.own(1, View { data: &read.go[at..], stride: task.q_width() }, rows.len());
    let (mut lse, mut delta) = ([0.0; TILE], [0.0; TILE]);
    for (i, row) in rows.clone().enumerate() {
        let at = task.lse_at(row, task.head);
        (lse[i], delta[i]) = (read.lse[at], read.delta[at]);
    }
    sums.fill(0.0);
    for keys in task.key_tiles(&rows) {
        let at = task.kv_at(keys.start, kv_head);
        let k = View { data: &read.k[at..], stride: task.kv_width() };
        kit.scores(0, k, keys.len(), lanes, scores);
        kit.scores(1, View { data: &read.v[at..], stride: task.kv_width() }, keys.len(), lanes, gp);
        for (s, gp) in scores.chunks_exact_mut(TILE).zip(gp.chunks_exact(TILE)).take(keys.len()) {
            for first in (0..lanes).step_by(LANES) {
                let (s, gp) = (lanes_of_mut(s, first), lanes_of(gp, first));
                let (lse, delta) = (lanes_of(&lse, first), lanes_of(&delta, first));
                let p = K::exps(from_fn(|i| s[i].mul_add(heads.scale, -lse[i])));
                *s = from_fn(|i| p[i] * (gp[i] - delta[i]) * heads.scale);
            }
        }
        if !task.all_seen(&rows, &keys) {
            for (row, key) in scores.chunks_exact_mut(TILE).zip(keys.clone()) {
                hide(&mut row[..lanes], visible(segment.seeing(key..key + 1, heads.window), &rows), 0.0);
            }
        }
        kit.add(k, keys.len(), scores, lanes, sums);
    }
    kit.finish(sums, &[1.0; TILE], rows.len(), gq, task.q_at(rows.start, task.head), task.q_width());
}

/// A tile of keys: their gradients and those of the values, summed over all query heads that share them.
#[inline(always)]
pub(super) fn key_gradient<K: Kit>(kit: &mut K, task: Task, read: Read, gk: &Rows<'_>, gv: &Rows<'_>, mut work: Work) {
    sweep_queries(kit, task, read, None, (gk, gv), &mut work);
}

/// All gradients of a key head and the query heads that share it, in one sweep: what [`query_gradient`] and [`key_gradient`] give, to
/// the bit, from one computation of the scores. Tiles of keys come in ascending order, so gradients of queries are summed in it.
#[inline(always)]
pub(super) fn head_gradients<K: Kit>(
    kit: &mut K,
    task: Task,
    read: Read,
    gq: &Rows<'_>,
    (gk, gv): (&Rows<'_>, &Rows<'_>),
    mut work: Work,
) {
    for tile in 0..task.segment.k_len.div_ceil(TILE) {
        sweep_queries(kit, Task { tile, ..task }, read, Some(gq), (gk, gv), &mut work);
    }
}

/// The queries that see a tile of keys, by tiles and heads; adds to their gradients `gq` where that is given.
#[inline(always)]
fn sweep_queries<K: Kit>(
    kit: &mut K,
    task: Task,
    read: Read,
    gq: Option<&Rows<'_>>,
    (gk, gv): (&Rows<'_>, &Rows<'_>),
    work: &mut Work,
) {
    let (segment, heads) = (task.segment, task.heads);
    let keys = task.rows(segment.k_len);
    let lanes = keys.len().next_multiple_of(LANES);
    let Work { scores, other: gs, sums: [gk_sums, gv_sums], rows: square } = work;
    let at = task.kv_at(keys.start, task.head);
    let k = View { data: &read.k[at..], stride: task.kv_width() };
    kit.own(0, k, keys.len());
    kit.own(1, View { data: &read.v[at..], stride: task.kv_width() }, keys.len());
    if gq.is_some() {
        kit.own_across(k, keys.len());
    }
    gk_sums.fill(0.0);
    gv_sums.fill(0.0);
    let group = heads.queries / heads.kv;
    let seeing = segment.seeing(keys.clone(), heads.window);
    for head in task.head * group..(task.head + 1) * group {
        for first in (seeing.start / TILE * TILE..seeing.end).step_by(TILE) {
            // The whole tile, whoever of it sees these keys: so its gradients begin with the first tile of keys for all its rows.
            let rows = first..(first + TILE).min(segment.q_len);
            let at = task.q_at(rows.start, head);
            let q = View { data: &read.q[at..], stride: task.q_width() };
            let go = View { data: &read.go[at..], stride: task.q_width() };
            kit.scores(0, q, rows.len(), lanes, scores);
            kit.scores(1, go, rows.len(), lanes, gs);
            for ((p, gs), row) in scores.chunks_exact_mut(TILE).zip(gs.chunks_exact_mut(TILE)).zip(rows.clone()) {
                let at = task.lse_at(row, head);
                let (lse, delta) = (read.lse[at], read.delta[at]);
                for first in (0..lanes).step_by(LANES) {
                    let (p, gs) = (lanes_of_mut(p, first), lanes_of_mut(gs, first));
                    *p = K::exps(from_fn(|i| p[i].mul_add(heads.scale, -lse)));
                    *gs = from_fn(|i| p[i] * (gs[i] - delta) * heads.scale);
                }
            }
            if lanes != keys.len() || !task.all_seen(&rows, &keys) {
                for (at, row) in rows.clone().enumerate() {
                    let visible = visible(segment.seen(row, heads.window), &keys);
                    hide(&mut scores[at * TILE..][..lanes], visible.clone(), 0.0);
                    hide(&mut gs[at * TILE..][..lanes], visible, 0.0);
                }
            }
            kit.add(go, rows.len(), scores, lanes, gv_sums);
            kit.add(q, rows.len(), gs, lanes, gk_sums);
            if let Some(gq) = gq {
                let begins = task.key_tiles(&rows).next().is_none_or(|first| first.start == keys.start);
                let place = (at, task.q_width());
                take(begins, gq, place, heads.d, rows.len(), square);
                kit.across(gs, rows.len(), lanes, square);
                give(square, gq, place, heads.d, rows.len());
            }
        }
    }
    for (to, sums) in [(gk, gk_sums), (gv, gv_sums)] {
        kit.finish(sums, &[1.0; TILE], keys.len(), to, task.kv_at(keys.start, task.head), task.kv_width());
    }
}

/// Brings rows of an output into a thread's memory, or zeros where they `begin`. The caller owns them.
#[inline(always)]
fn take(begin: bool, from: &Rows<'_>, (at, stride): (usize, usize), d: usize, rows: usize, to: &mut [f32]) {
    for (row, to) in to.chunks_exact_mut(padded(d)).enumerate().take(rows) {
        if begin {
            to.fill(0.0);
        } else {
            // SAFETY: the caller owns these rows.
            to[..d].copy_from_slice(unsafe { from.range(at + row * stride..at + row * stride + d) });
        }
    }
}

/// And back.
#[inline(always)]
fn give(from: &[f32], to: &Rows<'_>, (at, stride): (usize, usize), d: usize, rows: usize) {
    for (row, from) in from.chunks_exact(padded(d)).enumerate().take(rows) {
        // SAFETY: the caller owns these rows.
        unsafe { to.range(at + row * stride..at + row * stride + d) }.copy_from_slice(&from[..d]);
    }
}
