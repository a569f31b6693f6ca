//! The derivative of attention: sweeps over tiles as in [`super::body`], with the same sides. A gradient of a query is the sum of what the two halves of the
//! keys give it, whoever computed that; a gradient of a key is summed over queries in ascending order.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use super::TILE;
use super::body::{Read, Task, Work, group, hide, reach, visible};
use super::kit::{GROUP, Kit, LANES, Lanes, Reach, To, padded};
use crate::rows::Rows;

/// Where gradients go.
#[derive(Clone, Copy)]
pub(super) struct Gradients<'a> {
    pub gq: &'a Rows<'a>,
    pub gk: &'a Rows<'a>,
    pub gv: &'a Rows<'a>,
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

impl Task {
    /// All tiles of keys, in two parts with about as many pairs of a tile of keys and one of queries.
    pub fn halves(&self) -> [Range<usize>; 2] {
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
}

/// A tile of queries, for all heads that share their keys: their gradients, in as many sums as there are `parts` of keys, and with `keys_too` what
/// they add to gradients of keys and values. Where that is one `half`, whoever is at the other adds his.
#[inline(always)]
pub(super) fn query_gradient<'a, K: Kit<'a>>(
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
pub(super) fn key_gradient<'a, K: Kit<'a>>(kit: &mut K, task: Task, read: Read<'a>, to: Gradients, work: Work) {
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
pub(super) fn all_gradients<'a, K: Kit<'a>>(
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
