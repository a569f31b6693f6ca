//! Causal attention over segments of rows, forward and backward, in tiles: scores live in one thread's scratch and are never
//! written out; only the log-sum-exp of each row is kept.
//!
//! A batch is a list of segments, each a record with its own positions, so nothing is padded and records never see each other.
//! Tiles have a fixed size and every output tile has one owner that sums in ascending order: results do not depend on threads.

use std::ops::Range;

use crate::math::{dot, exp};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::tile::{View, mm, transpose};
use crate::{Isa, Pool};

/// The shape of an attention: query heads share key/value heads in groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key/value heads; divides `queries`.
    pub kv: usize,
    /// Elements of a head.
    pub d: usize,
    /// What scores are multiplied with.
    pub scale: f32,
    /// How many keys a query sees, itself included; all before it when `None`.
    pub window: Option<usize>,
}

/// One record's rows: queries `q_start..+q_len` are the last `q_len` positions of the keys `k_start..+k_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First query row.
    pub q_start: usize,
    /// Number of query rows.
    pub q_len: usize,
    /// First key row.
    pub k_start: usize,
    /// Number of key rows.
    pub k_len: usize,
}

impl Segment {
    /// The keys, counted from `k_start`, that query `i` of the segment sees.
    pub fn seen(&self, i: usize, window: Option<usize>) -> Range<usize> {
        let end = self.k_len - self.q_len + i + 1;
        window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// The queries that see any key of `keys`.
    fn seeing(&self, keys: Range<usize>, window: Option<usize>) -> Range<usize> {
        let past = self.k_len - self.q_len;
        let end = window.map_or(self.q_len, |window| (keys.end - 1 + window).saturating_sub(past).min(self.q_len));
        keys.start.saturating_sub(past)..end
    }
}

/// Rows of a tile of queries and of a tile of keys.
const TILE: usize = 64;

/// Scratch that [`forward`] and [`backward`] need, in floats.
pub fn scratch(heads: Heads, threads: usize) -> usize {
    threads * per_thread(heads.d)
}

const fn per_thread(d: usize) -> usize {
    3 * TILE * d + 2 * TILE * TILE + 2 * TILE
}

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each (row, head).
#[allow(clippy::too_many_arguments)]
pub fn forward(
    isa: Isa,
    pool: &Pool,
    heads: Heads,
    segments: &[Segment],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
    scratch: &mut [f32],
) {
    check(heads, segments, q.len(), k.len().min(v.len()));
    assert!(out.len() == q.len() && lse.len() * heads.d == q.len());
    let scratch = Rows::new(scratch, per_thread(heads.d));
    let (out, lse) = (Rows::new(out, 1), Rows::new(lse, 1));
    let tiles = |segment: &Segment| segment.q_len.div_ceil(TILE) * heads.queries;
    pool.run(segments.iter().map(tiles).sum(), &|task, thread| {
        let (segment, tile, head) = locate(segments, task, heads.queries, tiles);
        let work = scratch.piece(thread).0;
        forward_tile(isa, heads, segment, tile, head, q, k, v, &out, &lse, work);
    });
}

/// With `p = exp(s - lse)`: `gv = pᵀ go`, `gs = p (go vᵀ - Σ go o)`, `gq = gs k scale`, `gk = gsᵀ q scale`.
///
/// Two sweeps, one that owns tiles of `gq` and one that owns tiles of `gk` and `gv`: scores are computed twice, and no sum is
/// ever shared between threads.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    isa: Isa,
    pool: &Pool,
    heads: Heads,
    segments: &[Segment],
    (q, k, v): (&[f32], &[f32], &[f32]),
    (out, lse, go): (&[f32], &[f32], &[f32]),
    (gq, gk, gv): (&mut [f32], &mut [f32], &mut [f32]),
    scratch: &mut [f32],
) {
    check(heads, segments, q.len(), k.len().min(v.len()));
    assert!(gq.len() == q.len() && gk.len() == k.len() && gv.len() == v.len());
    assert!(out.len() == q.len() && go.len() == q.len() && lse.len() * heads.d == q.len());
    let scratch = Rows::new(scratch, per_thread(heads.d));
    let (gq, gk, gv) = (Rows::new(gq, 1), Rows::new(gk, 1), Rows::new(gv, 1));
    let read = Read { q, k, v, out, lse, go };
    let q_tiles = |segment: &Segment| segment.q_len.div_ceil(TILE) * heads.queries;
    pool.run(segments.iter().map(q_tiles).sum(), &|task, thread| {
        let (segment, tile, head) = locate(segments, task, heads.queries, q_tiles);
        query_gradient_tile(isa, heads, segment, tile, head, read, &gq, scratch.piece(thread).0);
    });
    let k_tiles = |segment: &Segment| segment.k_len.div_ceil(TILE) * heads.kv;
    pool.run(segments.iter().map(k_tiles).sum(), &|task, thread| {
        let (segment, tile, head) = locate(segments, task, heads.kv, k_tiles);
        key_gradient_tile(isa, heads, segment, tile, head, read, &gk, &gv, scratch.piece(thread).0);
    });
}

fn check(heads: Heads, segments: &[Segment], q_len: usize, kv_len: usize) {
    let (q_width, kv_width) = (heads.queries * heads.d, heads.kv * heads.d);
    for s in segments {
        assert!(s.q_len <= s.k_len && (s.q_start + s.q_len) * q_width <= q_len, "{s:?}: {q_len} query elements");
        assert!((s.k_start + s.k_len) * kv_width <= kv_len, "{s:?}: {kv_len} key elements");
    }
}

/// The segment, tile and head of a task. Later tiles of a causal segment cost more, so they come first.
fn locate(
    segments: &[Segment],
    task: usize,
    heads: usize,
    tiles: impl Fn(&Segment) -> usize,
) -> (Segment, usize, usize) {
    let mut task = task;
    for segment in segments {
        let count = tiles(segment);
        if task < count {
            return (*segment, count / heads - 1 - task / heads, task % heads);
        }
        task -= count;
    }
    unreachable!("the pool runs as many tasks as there are tiles");
}

/// What the backward pass reads.
#[derive(Clone, Copy)]
struct Read<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a [f32],
    lse: &'a [f32],
    go: &'a [f32],
}

per_isa!(fn forward_tile(heads: Heads, segment: Segment, tile: usize, head: usize, q: &[f32], k: &[f32], v: &[f32], out: &Rows<'_>, lse: &Rows<'_>, work: &mut [f32]) = forward_body);
per_isa!(fn query_gradient_tile(heads: Heads, segment: Segment, tile: usize, head: usize, read: Read<'_>, gq: &Rows<'_>, work: &mut [f32]) = query_gradient_body);
per_isa!(fn key_gradient_tile(heads: Heads, segment: Segment, tile: usize, head: usize, read: Read<'_>, gk: &Rows<'_>, gv: &Rows<'_>, work: &mut [f32]) = key_gradient_body);

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn forward_body(
    heads: Heads,
    segment: Segment,
    tile: usize,
    head: usize,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &Rows<'_>,
    lse: &Rows<'_>,
    work: &mut [f32],
) {
    let Heads { queries, kv, d, .. } = heads;
    let (q_width, kv_width) = (queries * d, kv * d);
    let rows = tile * TILE..((tile + 1) * TILE).min(segment.q_len);
    let q_at = (segment.q_start + rows.start) * q_width + head * d;
    let kv_head = head / (queries / kv) * d;
    let (keys, work) = work.split_at_mut(TILE * d);
    let (sums, work) = work.split_at_mut(TILE * d);
    let (scores, work) = work.split_at_mut(TILE * TILE);
    let (top, total) = work[..2 * TILE].split_at_mut(TILE);
    top.fill(f32::NEG_INFINITY);
    total.fill(0.0);
    sums.fill(0.0);
    for key_tile in key_tiles(segment, &rows, heads.window) {
        let (seen, at) = (key_tile.len(), (segment.k_start + key_tile.start) * kv_width + kv_head);
        transpose((seen, d), View { data: &k[at..], stride: kv_width }, keys, TILE);
        let (q, keys) = (View { data: &q[q_at..], stride: q_width }, View { data: keys, stride: TILE });
        mm((rows.len(), seen, d), q, keys, scores, TILE, false);
        for (i, row) in rows.clone().enumerate() {
            let scores = &mut scores[i * TILE..][..seen];
            let visible = visible(segment.seen(row, heads.window), &key_tile);
            softmax_step(scores, visible, heads.scale, &mut top[i], &mut total[i], &mut sums[i * d..][..d]);
        }
        let (p, values) = (View { data: scores, stride: TILE }, View { data: &v[at..], stride: kv_width });
        mm((rows.len(), d, seen), p, values, sums, d, true);
    }
    for (i, row) in rows.enumerate() {
        let row = segment.q_start + row;
        let inverse = 1.0 / total[i];
        // SAFETY: (row, head) belongs to this task alone.
        let (out, lse) = unsafe {
            let at = row * q_width + head * d;
            (out.range(at..at + d), lse.range(row * queries + head..row * queries + head + 1))
        };
        out.iter_mut().zip(&sums[i * d..]).for_each(|(out, &sum)| *out = sum * inverse);
        lse[0] = top[i] + total[i].ln();
    }
}

/// Turns a row of scores into probabilities relative to the running maximum, and rescales what was summed before.
#[inline(always)]
fn softmax_step(
    scores: &mut [f32],
    visible: Range<usize>,
    scale: f32,
    top: &mut f32,
    total: &mut f32,
    sums: &mut [f32],
) {
    let mut highest = *top;
    for s in &mut scores[visible.clone()] {
        *s *= scale;
        highest = highest.max(*s);
    }
    scores[..visible.start].fill(0.0);
    scores[visible.end..].fill(0.0);
    if visible.is_empty() {
        return;
    }
    let shrink = exp(*top - highest);
    let mut sum = 0.0;
    for s in &mut scores[visible] {
        *s = exp(*s - highest);
    }
    for s in scores.iter() {
        sum += s;
    }
    *total = total.mul_add(shrink, sum);
    *top = highest;
    if shrink != 1.0 {
        sums.iter_mut().for_each(|sum| *sum *= shrink);
    }
}

/// The tiles of keys that any of `rows` sees, at multiples of the tile size.
#[inline(always)]
fn key_tiles(segment: Segment, rows: &Range<usize>, window: Option<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = segment.seen(rows.start, window).start / TILE;
    let end = segment.seen(rows.end - 1, window).end;
    (first..end.div_ceil(TILE)).map(move |tile| tile * TILE..((tile + 1) * TILE).min(end))
}

/// The part of a tile of keys inside `seen`, counted from the tile's start.
#[inline(always)]
fn visible(seen: Range<usize>, tile: &Range<usize>) -> Range<usize> {
    let end = seen.end.clamp(tile.start, tile.end) - tile.start;
    (seen.start.clamp(tile.start, tile.end) - tile.start).min(end)..end
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn query_gradient_body(
    heads: Heads,
    segment: Segment,
    tile: usize,
    head: usize,
    read: Read<'_>,
    gq: &Rows<'_>,
    work: &mut [f32],
) {
    let Heads { queries, kv, d, scale, window } = heads;
    let (q_width, kv_width) = (queries * d, kv * d);
    let rows = tile * TILE..((tile + 1) * TILE).min(segment.q_len);
    let q_at = (segment.q_start + rows.start) * q_width + head * d;
    let (q, go) = (View { data: &read.q[q_at..], stride: q_width }, View { data: &read.go[q_at..], stride: q_width });
    let (side, work) = work.split_at_mut(TILE * d);
    let (sums, work) = work.split_at_mut(TILE * d);
    let (scores, work) = work.split_at_mut(TILE * TILE);
    let (gp, delta) = work.split_at_mut(TILE * TILE);
    for (i, delta) in delta[..rows.len()].iter_mut().enumerate() {
        let at = q_at + i * q_width;
        *delta = dot(&read.go[at..][..d], &read.out[at..][..d]);
    }
    sums.fill(0.0);
    for key_tile in key_tiles(segment, &rows, window) {
        let (seen, at) = (key_tile.len(), (segment.k_start + key_tile.start) * kv_width + head / (queries / kv) * d);
        let (k, v) = (View { data: &read.k[at..], stride: kv_width }, View { data: &read.v[at..], stride: kv_width });
        transpose((seen, d), k, side, TILE);
        mm((rows.len(), seen, d), q, View { data: side, stride: TILE }, scores, TILE, false);
        transpose((seen, d), v, side, TILE);
        mm((rows.len(), seen, d), go, View { data: side, stride: TILE }, gp, TILE, false);
        for (i, row) in rows.clone().enumerate() {
            let lse = read.lse[(segment.q_start + row) * queries + head];
            let (scores, gp) = (&mut scores[i * TILE..][..seen], &gp[i * TILE..][..seen]);
            let visible = visible(segment.seen(row, window), &key_tile);
            scores[..visible.start].fill(0.0);
            scores[visible.end..].fill(0.0);
            for (s, &gp) in scores[visible.clone()].iter_mut().zip(&gp[visible]) {
                *s = exp((*s).mul_add(scale, -lse)) * (gp - delta[i]) * scale;
            }
        }
        mm((rows.len(), d, seen), View { data: scores, stride: TILE }, k, sums, d, true);
    }
    for i in 0..rows.len() {
        let at = q_at + i * q_width;
        // SAFETY: (row, head) belongs to this task alone.
        unsafe { gq.range(at..at + d) }.copy_from_slice(&sums[i * d..][..d]);
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn key_gradient_body(
    heads: Heads,
    segment: Segment,
    tile: usize,
    kv_head: usize,
    read: Read<'_>,
    gk: &Rows<'_>,
    gv: &Rows<'_>,
    work: &mut [f32],
) {
    let Heads { queries, kv, d, scale, window } = heads;
    let (q_width, kv_width) = (queries * d, kv * d);
    let keys = tile * TILE..((tile + 1) * TILE).min(segment.k_len);
    let at = (segment.k_start + keys.start) * kv_width + kv_head * d;
    let (k, v) = (View { data: &read.k[at..], stride: kv_width }, View { data: &read.v[at..], stride: kv_width });
    let (side, work) = work.split_at_mut(TILE * d);
    let (gk_sums, work) = work.split_at_mut(TILE * d);
    let (gv_sums, work) = work.split_at_mut(TILE * d);
    let (scores, work) = work.split_at_mut(TILE * TILE);
    let (gp, work) = work.split_at_mut(TILE * TILE);
    let (delta, lse) = work.split_at_mut(TILE);
    gk_sums.fill(0.0);
    gv_sums.fill(0.0);
    let group = queries / kv;
    for head in kv_head * group..(kv_head + 1) * group {
        let seeing = segment.seeing(keys.clone(), window);
        let mut first = seeing.start / TILE * TILE;
        while first < seeing.end {
            let rows = first..(first + TILE).min(seeing.end);
            first += TILE;
            let q_at = (segment.q_start + rows.start) * q_width + head * d;
            let (q, go) =
                (View { data: &read.q[q_at..], stride: q_width }, View { data: &read.go[q_at..], stride: q_width });
            transpose((rows.len(), d), q, side, TILE);
            mm((keys.len(), rows.len(), d), k, View { data: side, stride: TILE }, scores, TILE, false);
            transpose((rows.len(), d), go, side, TILE);
            mm((keys.len(), rows.len(), d), v, View { data: side, stride: TILE }, gp, TILE, false);
            for (i, row) in rows.clone().enumerate() {
                let at = q_at + i * q_width;
                delta[i] = dot(&read.go[at..][..d], &read.out[at..][..d]);
                lse[i] = read.lse[(segment.q_start + row) * queries + head];
            }
            for (j, key) in keys.clone().enumerate() {
                let seeing = segment.seeing(key..key + 1, window);
                let visible = visible(seeing, &rows);
                let (p, gs) = (&mut scores[j * TILE..][..rows.len()], &mut gp[j * TILE..][..rows.len()]);
                for i in 0..rows.len() {
                    let probability = exp(p[i].mul_add(scale, -lse[i]));
                    gs[i] = probability * (gs[i] - delta[i]) * scale;
                    p[i] = probability;
                }
                for hidden in [0..visible.start, visible.end..rows.len()] {
                    p[hidden.clone()].fill(0.0);
                    gs[hidden].fill(0.0);
                }
            }
            mm((keys.len(), d, rows.len()), View { data: scores, stride: TILE }, go, gv_sums, d, true);
            mm((keys.len(), d, rows.len()), View { data: gp, stride: TILE }, q, gk_sums, d, true);
        }
    }
    for i in 0..keys.len() {
        let at = at + i * kv_width;
        // SAFETY: (key row, head) belongs to this task alone.
        let (gk, gv) = unsafe { (gk.range(at..at + d), gv.range(at..at + d)) };
        gk.copy_from_slice(&gk_sums[i * d..][..d]);
        gv.copy_from_slice(&gv_sums[i * d..][..d]);
    }
}
