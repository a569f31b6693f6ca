//! Attention over segments of rows, forward and backward, in tiles: scores live in one thread's scratch and are never
//! written out; only the log-sum-exp of each row is kept.
//!
//! In bf16 on AMX the inputs of the small products are rounded, as probabilities are; everything else is f32 always. Elsewhere all of it is.
//!
//! A batch is a list of segments, each a record with its own positions, so nothing is padded and records never see each other.
//! Tiles have a fixed size and every output tile has one owner that sums in ascending order: results do not depend on threads.

#[cfg(target_arch = "x86_64")]
mod amx;
mod body;
mod float;
mod single;

use std::ops::Range;

use self::body::{Read, Task, Work};
use self::float::Float;
use crate::Isa;
use crate::math::dot;
use crate::matmul::{Ctx, Precision};
use crate::per_isa::per_isa;
use crate::rows::Rows;

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
    /// Which keys a query sees.
    pub window: Window,
}

/// Which keys of its segment a query sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Window {
    /// All before it, and its own.
    #[default]
    Past,
    /// At most so many of those, the last ones.
    Last(usize),
    /// All, those after it too: attention that is not causal.
    Whole,
}

impl Window {
    /// Causal attention, over at most `last` keys where there is such a number.
    pub const fn causal(last: Option<usize>) -> Self {
        match last {
            Some(last) => Window::Last(last),
            None => Window::Past,
        }
    }

    /// Keys that a query of a segment of `length` tokens sees on average.
    pub fn mean(self, length: f64) -> f64 {
        match self {
            Window::Past => (length + 1.0) / 2.0,
            Window::Last(last) => ((length + 1.0) / 2.0).min(last as f64),
            Window::Whole => length,
        }
    }
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
    pub fn seen(&self, i: usize, window: Window) -> Range<usize> {
        let end = self.k_len - self.q_len + i + 1;
        match window {
            Window::Past => 0..end,
            Window::Last(last) => end.saturating_sub(last)..end,
            Window::Whole => 0..self.k_len,
        }
    }

    /// The queries that see any key of `keys`.
    fn seeing(&self, keys: Range<usize>, window: Window) -> Range<usize> {
        let past = self.k_len - self.q_len;
        let first = keys.start.saturating_sub(past);
        match window {
            Window::Past => first..self.q_len,
            Window::Last(last) => first..(keys.end - 1 + last).saturating_sub(past).min(self.q_len),
            Window::Whole => 0..self.q_len,
        }
    }
}

/// Rows of a tile of queries and of a tile of keys.
const TILE: usize = 64;

/// Scratch that [`forward`] needs, in floats.
pub fn scratch(heads: Heads, threads: usize, isa: Isa, precision: Precision) -> usize {
    LINE + threads * per_thread(heads.d, on_amx(isa, precision))
}

/// Scratch that [`backward`] needs for `rows` queries: that of [`forward`], and a number for each (row, head).
pub fn backward_scratch(heads: Heads, rows: usize, threads: usize, isa: Isa, precision: Precision) -> usize {
    scratch(heads, threads, isa, precision) + rows * heads.queries
}

fn per_thread(d: usize, amx: bool) -> usize {
    #[cfg(target_arch = "x86_64")]
    if amx {
        return (Work::len(d) + amx::Amx::len(d)).next_multiple_of(LINE);
    }
    let _ = amx;
    (Work::len(d) + Float::<1, 16>::len(d)).next_multiple_of(LINE)
}

fn on_amx(isa: Isa, precision: Precision) -> bool {
    isa == Isa::Amx && precision == Precision::Bf16
}

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each (row, head).
///
/// # Panics
/// When a slice or the scratch memory has another length than the shapes ask for.
#[allow(clippy::too_many_arguments)]
pub fn forward(
    ctx: &mut Ctx,
    heads: Heads,
    segments: &[Segment],
    (q, k, v): (&[f32], &[f32], &[f32]),
    (out, lse): (&mut [f32], &mut [f32]),
) {
    check(heads, segments, q.len(), k.len().min(v.len()));
    assert!(out.len() == q.len() && lse.len() * heads.d == q.len());
    let (isa, amx, pool) = (ctx.isa, on_amx(ctx.isa, ctx.precision), ctx.pool);
    let (out, lse, scratch) = (Rows::new(out, 1), Rows::new(lse, 1), cut(ctx, heads, 0).1);
    let read = Read { q, k, v, lse: &[], go: &[], delta: &[] };
    let tiles = |segment: &Segment| segment.q_len.div_ceil(TILE) * heads.queries;
    pool.run(segments.iter().map(tiles).sum(), &|task, thread| {
        let task = locate(heads, segments, task, heads.queries, tiles);
        let work = scratch.piece(thread).0;
        if task.segment.q_len == 1 {
            single::forward(isa, task, read, &out, &lse);
        } else if amx {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `cut` has made sure that this processor has AMX and that it was granted.
            unsafe {
                amx::forward(task, read, &out, &lse, work);
            }
        } else {
            forward_tile(isa, task, read, &out, &lse, work);
        }
    });
}

/// With `p = exp(s - lse)`: `gv = pᵀ go`, `gs = p (go vᵀ - Σ go o)`, `gq = gs k scale`, `gk = gsᵀ q scale`.
///
/// One sweep where a key head is a task for each thread, or two, one that owns tiles of `gq` and one that owns tiles of `gk` and
/// `gv`: then scores are computed twice, and no sum is ever shared between threads. The bits are the same.
///
/// # Panics
/// As [`forward`].
pub fn backward(
    ctx: &mut Ctx,
    heads: Heads,
    segments: &[Segment],
    (q, k, v): (&[f32], &[f32], &[f32]),
    (out, lse, go): (&[f32], &[f32], &[f32]),
    (gq, gk, gv): (&mut [f32], &mut [f32], &mut [f32]),
) {
    check(heads, segments, q.len(), k.len().min(v.len()));
    assert!(gq.len() == q.len() && gk.len() == k.len() && gv.len() == v.len());
    assert!(out.len() == q.len() && go.len() == q.len() && lse.len() * heads.d == q.len());
    let (isa, amx, pool) = (ctx.isa, on_amx(ctx.isa, ctx.precision), ctx.pool);
    let (gq, gk, gv) = (Rows::new(gq, 1), Rows::new(gk, 1), Rows::new(gv, 1));
    let (delta, scratch) = cut(ctx, heads, lse.len());
    let pieces = Rows::new(delta, DELTAS);
    pool.run(pieces.pieces(), &|task, _| {
        let (to, at) = pieces.piece(task);
        deltas(isa, heads.d, &go[at.start * heads.d..at.end * heads.d], &out[at.start * heads.d..at.end * heads.d], to);
    });
    let read = Read { q, k, v, lse, go, delta };

    let heads_of = |_: &Segment| heads.kv;
    let tasks: usize = segments.iter().map(heads_of).sum();
    if one_sweep(tasks, pool.threads()) {
        return pool.run(tasks, &|task, thread| {
            let (task, work) = (locate(heads, segments, task, heads.kv, heads_of), scratch.piece(thread).0);
            if amx {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `cut` has made sure that this processor has AMX and that it was granted.
                unsafe {
                    amx::head_gradients(task, read, &gq, (&gk, &gv), work);
                }
            } else {
                head_gradients(isa, task, read, &gq, (&gk, &gv), work);
            }
        });
    }
    let q_tiles = |segment: &Segment| segment.q_len.div_ceil(TILE) * heads.queries;
    pool.run(segments.iter().map(q_tiles).sum(), &|task, thread| {
        let (task, work) = (locate(heads, segments, task, heads.queries, q_tiles), scratch.piece(thread).0);
        if amx {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `cut` has made sure that this processor has AMX and that it was granted.
            unsafe {
                amx::query_gradient(task, read, &gq, work);
            }
        } else {
            query_gradient_tile(isa, task, read, &gq, work);
        }
    });
    let k_tiles = |segment: &Segment| segment.k_len.div_ceil(TILE) * heads.kv;
    pool.run(segments.iter().map(k_tiles).sum(), &|task, thread| {
        let (task, work) = (locate(heads, segments, task, heads.kv, k_tiles), scratch.piece(thread).0);
        if amx {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `cut` has made sure that this processor has AMX and that it was granted.
            unsafe {
                amx::key_gradient(task, read, &gk, &gv, work);
            }
        } else {
            key_gradient_tile(isa, task, read, &gk, &gv, work);
        }
    });
}

/// Floats of a cache line: a thread's memory begins at one, since a tile whose rows cross lines loads at a third of the speed.
const LINE: usize = 16;

/// Entries of `Σ go o` that make a task.
const DELTAS: usize = 256;

per_isa!(fn deltas(d: usize, go: &[f32], out: &[f32], to: &mut [f32]) = deltas_body);

#[inline(always)]
fn deltas_body(d: usize, go: &[f32], out: &[f32], to: &mut [f32]) {
    for ((to, go), out) in to.iter_mut().zip(go.chunks_exact(d)).zip(out.chunks_exact(d)) {
        *to = dot(go, out);
    }
}

/// Whether whole key heads are tasks enough. Two sweeps take about 1.6 times the work, but leave no thread idle.
fn one_sweep(tasks: usize, threads: usize) -> bool {
    let rounds = tasks.div_ceil(threads);
    10 * rounds * threads <= 16 * tasks
}

/// The first `shared` floats of the scratch memory, and each thread's part of the rest.
fn cut<'a>(ctx: &'a mut Ctx, heads: Heads, shared: usize) -> (&'a mut [f32], Rows<'a>) {
    assert!(ctx.isa.available(), "this processor has no {}", ctx.isa.name());
    let each = per_thread(heads.d, on_amx(ctx.isa, ctx.precision));
    let wanted = LINE + shared + each * ctx.pool.threads();
    assert!(ctx.scratch.len() >= wanted, "scratch has {} elements of {wanted}", ctx.scratch.len());
    let (first, rest) = ctx.scratch.split_at_mut(shared);
    let line = rest.as_ptr().align_offset(4 * LINE);
    (first, Rows::new(&mut rest[line..line + each * ctx.pool.threads()], each))
}

fn check(heads: Heads, segments: &[Segment], q_len: usize, kv_len: usize) {
    let (q_width, kv_width) = (heads.queries * heads.d, heads.kv * heads.d);
    for s in segments {
        assert!(s.q_len <= s.k_len && (s.q_start + s.q_len) * q_width <= q_len, "{s:?}: {q_len} query elements");
        assert!((s.k_start + s.k_len) * kv_width <= kv_len, "{s:?}: {kv_len} key elements");
    }
}

/// The segment, tile and head (of `count`) of a task. Later tiles of a causal segment cost more, so they come first.
fn locate(heads: Heads, segments: &[Segment], task: usize, count: usize, tiles: impl Fn(&Segment) -> usize) -> Task {
    let mut task = task;
    for segment in segments {
        let all = tiles(segment);
        if task < all {
            return Task { heads, segment: *segment, tile: all / count - 1 - task / count, head: task % count };
        }
        task -= all;
    }
    unreachable!("the pool runs as many tasks as there are tiles");
}

per_isa!(fn forward_tile(task: Task, read: Read<'_>, out: &Rows<'_>, lse: &Rows<'_>, work: &mut [f32]) = float_forward::<8, 32>, or float_forward::<4, 16>);
per_isa!(fn query_gradient_tile(task: Task, read: Read<'_>, gq: &Rows<'_>, work: &mut [f32]) = float_query_gradient::<8, 32>, or float_query_gradient::<4, 16>);
per_isa!(fn head_gradients(task: Task, read: Read<'_>, gq: &Rows<'_>, to: (&Rows<'_>, &Rows<'_>), work: &mut [f32]) = float_head_gradients::<8, 32>, or float_head_gradients::<4, 16>);
per_isa!(fn key_gradient_tile(task: Task, read: Read<'_>, gk: &Rows<'_>, gv: &Rows<'_>, work: &mut [f32]) = float_key_gradient::<8, 32>, or float_key_gradient::<4, 16>);

#[inline(always)]
fn float_forward<const ROWS: usize, const COLS: usize>(
    task: Task,
    read: Read,
    out: &Rows,
    lse: &Rows,
    scratch: &mut [f32],
) {
    let (work, rest) = Work::cut(scratch, task.heads.d);
    body::forward(&mut Float::<ROWS, COLS>::new(rest, task.heads.d), task, read, out, lse, work);
}

#[inline(always)]
fn float_query_gradient<const ROWS: usize, const COLS: usize>(task: Task, read: Read, gq: &Rows, scratch: &mut [f32]) {
    let (work, rest) = Work::cut(scratch, task.heads.d);
    body::query_gradient(&mut Float::<ROWS, COLS>::new(rest, task.heads.d), task, read, gq, work);
}

#[inline(always)]
fn float_head_gradients<const ROWS: usize, const COLS: usize>(
    task: Task,
    read: Read,
    gq: &Rows,
    to: (&Rows, &Rows),
    scratch: &mut [f32],
) {
    let (work, rest) = Work::cut(scratch, task.heads.d);
    body::head_gradients(&mut Float::<ROWS, COLS>::new(rest, task.heads.d), task, read, gq, to, work);
}

#[inline(always)]
fn float_key_gradient<const ROWS: usize, const COLS: usize>(
    task: Task,
    read: Read,
    gk: &Rows,
    gv: &Rows,
    scratch: &mut [f32],
) {
    let (work, rest) = Work::cut(scratch, task.heads.d);
    body::key_gradient(&mut Float::<ROWS, COLS>::new(rest, task.heads.d), task, read, gk, gv, work);
}
