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
mod gradients;
mod kept;
mod kit;
mod single;

use std::ops::Range;
use std::sync::atomic::AtomicU8;

use half::bf16;

use self::body::{Read, Sweep, Task, Work};
use self::float::Float;
use self::gradients::{Gradients, Half};
use self::kept::Keeping;
use self::kit::To;
#[cfg(target_arch = "aarch64")]
use crate::lanes::F32x4;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{F32x8, F32x16};
use crate::lanes::{Lanes, Plain};
use crate::math::dot;
use crate::matmul::{Ctx, Precision};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Element, Isa, Values, ValuesMut};

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

impl Heads {
    /// Query heads that share a key/value head.
    pub const fn shared(&self) -> usize {
        self.queries / self.kv
    }
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

/// Scratch that [`forward`] needs, in floats, with room to keep what is made of up to `keys` keys of a segment. Those beyond are made
/// anew for every tile of queries: fewer `keys` take less room and more time.
pub fn scratch(heads: Heads, keys: usize, threads: usize, isa: Isa, precision: Precision) -> usize {
    scratch_keeping(Keeping::FORWARD, heads, keys, threads, on_amx(isa, precision))
}

/// Scratch that [`backward`] needs for `rows` queries, with room as for [`forward`]: a number for each (row, head) beside it.
pub fn backward_scratch(
    heads: Heads,
    rows: usize,
    keys: usize,
    threads: usize,
    isa: Isa,
    precision: Precision,
) -> usize {
    scratch_keeping(Keeping::BACKWARD, heads, keys, threads, on_amx(isa, precision)) + rows * heads.queries
}

fn scratch_keeping(keeping: Keeping, heads: Heads, keys: usize, threads: usize, amx: bool) -> usize {
    let kept = if amx { keeping.tiles(keys.div_ceil(TILE)).len(heads.d) } else { 0 };
    LINE + threads * (per_thread(heads, amx) + kept)
}

fn per_thread(heads: Heads, amx: bool) -> usize {
    let (d, shared) = (heads.d, heads.shared());
    #[cfg(target_arch = "x86_64")]
    if amx {
        return (Work::len(d, shared) + amx::Amx::len(d, shared)).next_multiple_of(LINE);
    }
    let _ = amx;
    (Work::len(d, shared) + Float::<Plain, 1, 1>::len(d, shared)).next_multiple_of(LINE)
}

fn on_amx(isa: Isa, precision: Precision) -> bool {
    isa == Isa::Amx && precision == Precision::Bf16
}

/// `o = softmax(q kᵀ scale) v` and the log-sum-exp of each (row, head).
///
/// # Panics
/// When a slice or the scratch memory has another length than the shapes ask for.
pub fn forward(
    ctx: &mut Ctx,
    heads: Heads,
    segments: &[Segment],
    (q, k, v): (&[f32], &[f32], &[f32]),
    (out, lse): (&mut [f32], &mut [f32]),
) {
    forward_values(ctx, heads, segments, [q, k, v].map(Values::F32), (ValuesMut::F32(out), lse));
}

/// [`forward`] with `q`, `k`, `v` and `o` of either type.
///
/// # Panics
/// As [`forward`], and when bf16 are read elsewhere than on AMX in bf16.
pub fn forward_values(
    ctx: &mut Ctx,
    heads: Heads,
    segments: &[Segment],
    [q, k, v]: [Values; 3],
    (out, lse): (ValuesMut, &mut [f32]),
) {
    check(heads, segments, q.len(), k.len().min(v.len()));
    assert!(out.len() == q.len() && lse.len() * heads.d == q.len());
    match out {
        ValuesMut::F32(out) => forward_to(ctx, heads, segments, [q, k, v], (To::Write(&Rows::new(out, 1)), lse)),
        ValuesMut::Bf16(out) => forward_to(ctx, heads, segments, [q, k, v], (To::Round(&Rows::new(out, 1)), lse)),
    }
}

fn forward_to(ctx: &mut Ctx, heads: Heads, segments: &[Segment], [q, k, v]: [Values; 3], (out, lse): (To, &mut [f32])) {
    let (isa, pool) = (ctx.isa, ctx.pool);
    let lse = Rows::new(lse, 1);
    let (_, scratch, keeping) = cut(ctx, heads, 0, Keeping::FORWARD);
    let read = Read { q, k, v, lse: &[], go: Values::F32(&[]), delta: &[] };
    let tiles = |segment: &Segment| segment.q_len.div_ceil(TILE);
    let all: usize = segments.iter().map(tiles).sum();
    // Heads that share keys read them once, where that leaves work for every thread.
    let shared = if all * heads.kv >= 2 * pool.threads() { heads.shared() } else { 1 };
    let plan = Tasks { heads, segments, shared, first: 0 };
    pool.run_in_order(plan.count(tiles), &|task, thread| {
        let task = plan.locate(task, tiles);
        if let ([Values::F32(q), Values::F32(k), Values::F32(v)], To::Write(out), 1) =
            ([q, k, v], out, task.segment.q_len)
        {
            return task.each().for_each(|task| single::forward(isa, task, [q, k, v], out, &lse));
        }
        sweep(isa, task, read, Sweep::Forward { out, lse: &lse }, scratch.piece(thread).0, keeping);
    });
}

/// With `p = exp(s - lse)`: `gv = pᵀ go`, `gs = p (go vᵀ - Σ go o)`, `gq = gs k scale`, `gk = gsᵀ q scale`.
///
/// One sweep where a key head is a task for each thread, or where half of its keys are one; or two, one that owns tiles of `gq` and one that owns tiles of `gk` and
/// `gv`: then scores are computed twice. A gradient of a query is the sum of what either half of the keys gives it, whoever computed that, so the bits
/// are the same.
///
/// # Panics
/// As [`forward`].
pub fn backward(
    ctx: &mut Ctx,
    heads: Heads,
    segments: &[Segment],
    (q, k, v): (&[f32], &[f32], &[f32]),
    (out, lse, go): (&[f32], &[f32], &[f32]),
    to: (&mut [f32], &mut [f32], &mut [f32]),
) {
    let given = (Values::F32(out), lse, Values::F32(go));
    backward_values(ctx, heads, segments, [q, k, v].map(Values::F32), given, to);
}

/// [`backward`] with `q`, `k`, `v`, `o` and `go` of either type.
///
/// # Panics
/// As [`forward_values`].
pub fn backward_values(
    ctx: &mut Ctx,
    heads: Heads,
    segments: &[Segment],
    [q, k, v]: [Values; 3],
    (out, lse, go): (Values, &[f32], Values),
    (gq, gk, gv): (&mut [f32], &mut [f32], &mut [f32]),
) {
    check(heads, segments, q.len(), k.len().min(v.len()));
    assert!(gq.len() == q.len() && gk.len() == k.len() && gv.len() == v.len());
    assert!(out.len() == q.len() && go.len() == q.len() && lse.len() * heads.d == q.len());
    let (isa, pool) = (ctx.isa, ctx.pool);
    let (gq, gk, gv) = (Rows::new(gq, 1), Rows::new(gk, 1), Rows::new(gv, 1));
    let (delta, scratch, keeping) = cut(ctx, heads, lse.len(), Keeping::BACKWARD);
    let pieces = Rows::new(delta, DELTAS);
    pool.run(pieces.pieces(), &|task, _| {
        let (to, at) = pieces.piece(task);
        let at = at.start * heads.d..at.end * heads.d;
        match (go, out) {
            (Values::F32(go), Values::F32(out)) => deltas(isa, heads.d, &go[at.clone()], &out[at], to),
            (Values::Bf16(go), Values::Bf16(out)) => deltas_bf16(isa, heads.d, &go[at.clone()], &out[at], to),
            _ => panic!("an output and its gradient of different types"),
        }
    });
    let read = Read { q, k, v, lse, go, delta };

    let all = Tasks { heads, segments, shared: heads.shared(), first: 0 };
    let (q_tiles, k_tiles) = (|s: &Segment| s.q_len.div_ceil(TILE), |s: &Segment| s.k_len.div_ceil(TILE));
    let (whole, threads) = (all.count(|_| 1), pool.threads());
    let over = whole % threads;
    let each = segments.iter().map(q_tiles).max().unwrap_or(0);
    let over = Over::cheapest(over, threads, keeping.is_some_and(Keeping::any), over * each <= MEETINGS);
    let first = if over == Over::Whole { whole } else { whole - whole % threads };
    let to = Gradients { gq: &gq, gk: &gk, gv: &gv };
    pool.run(first, &|task, thread| {
        sweep(isa, all.locate(task, |_| 1), read, Sweep::All(to), scratch.piece(thread).0, keeping);
    });
    let rest = Tasks { first, ..all };
    if over == Over::Halves {
        let met = [const { AtomicU8::new(0) }; MEETINGS];
        pool.run(2 * rest.count(|_| 1), &|task, thread| {
            let half = Half { which: task % 2, met: &met[task / 2 * each..][..each] };
            let task = rest.locate(task / 2, |_| 1);
            sweep(isa, task, read, Sweep::Half(to, half), scratch.piece(thread).0, keeping);
        });
    } else {
        pool.run_in_order(rest.count(q_tiles), &|task, thread| {
            sweep(isa, rest.locate(task, q_tiles), read, Sweep::Queries(to), scratch.piece(thread).0, keeping);
        });
        pool.run_in_order(rest.count(k_tiles), &|task, thread| {
            sweep(isa, rest.locate_keys(task, k_tiles), read, Sweep::Keys(to), scratch.piece(thread).0, keeping);
        });
    }
}

/// Runs a task on AMX where a thread's memory is cut for that, and `keeping` says how.
fn sweep(isa: Isa, task: Task, read: Read, sweep: Sweep, work: &mut [f32], keeping: Option<Keeping>) {
    match keeping {
        // SAFETY: `cut` has made sure that this processor has AMX and that it was granted.
        #[cfg(target_arch = "x86_64")]
        Some(keeping) => unsafe { amx::run(task, read, sweep, work, keeping) },
        _ => in_floats(isa, task, read, sweep, work),
    }
}

/// Runs a task in f32, with as many sums in registers as there is room for.
fn in_floats(isa: Isa, task: Task, read: Read, sweep: Sweep, work: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn avx512(task: Task, read: Read, sweep: Sweep, work: &mut [f32]) {
        // SAFETY: the features are enabled here.
        unsafe { float_body::<F32x16, 8, 2>(task, read, sweep, work) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn avx2(task: Task, read: Read, sweep: Sweep, work: &mut [f32]) {
        // SAFETY: as above.
        unsafe { float_body::<F32x8, 4, 2>(task, read, sweep, work) }
    }
    // SAFETY: an `Isa` above `Scalar` is only made where the processor has its features.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Amx => avx512(task, read, sweep, work),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Vnni => avx2(task, read, sweep, work),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonBf16 => float_body::<F32x4, 4, 4>(task, read, sweep, work),
            _ => float_body::<Plain, 4, 1>(task, read, sweep, work),
        }
    }
}

/// # Safety
/// The processor has `L`'s instructions.
#[inline(always)]
unsafe fn float_body<L: Lanes, const ROWS: usize, const VECTORS: usize>(
    task: Task,
    read: Read,
    sweep: Sweep,
    scratch: &mut [f32],
) {
    let (work, rest) = Work::cut(scratch, &mut [], task.heads.d, task.shared);
    // SAFETY: the caller's promise.
    let mut kit = unsafe { Float::<L, ROWS, VECTORS>::new(rest, task.heads.d, task.shared) };
    body::run(&mut kit, task, read, sweep, work);
}

/// Floats of a cache line: a thread's memory begins at one, since a tile whose rows cross lines loads at a third of the speed.
const LINE: usize = 16;

/// Entries of `Σ go o` that make a task.
const DELTAS: usize = 256;

per_isa!(fn deltas(d: usize, go: &[f32], out: &[f32], to: &mut [f32]) = deltas_body);
per_isa!(fn deltas_bf16(d: usize, go: &[bf16], out: &[bf16], to: &mut [f32]) = deltas_body);

#[inline(always)]
fn deltas_body<T: Element>(d: usize, go: &[T], out: &[T], to: &mut [f32]) {
    for ((to, go), out) in to.iter_mut().zip(go.chunks_exact(d)).zip(out.chunks_exact(d)) {
        *to = dot(go, out);
    }
}

/// Tiles of queries, of all key heads that are worked on in halves, whose gradients two threads can bring together.
const MEETINGS: usize = 1024;

/// How key heads are worked on that are too few for each thread to have another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// As the others, while some threads have nothing to do.
    Whole,
    /// Each by two threads.
    Halves,
    /// In two sweeps over tiles, for any number of threads: about 1.8 times the work, and 2.5 times where one sweep keeps forms of keys and sums of their
    /// gradients.
    Tiles,
}

impl Over {
    /// What takes the least time for `over` heads, in twentieths of a head's.
    fn cheapest(over: usize, threads: usize, keeps: bool, halves: bool) -> Self {
        let tiles = (if keeps { 50 } else { 36 } * over).div_ceil(threads);
        let halves = if halves { 10 * (2 * over).div_ceil(threads) } else { usize::MAX };
        if over == 0 || tiles.min(halves) >= 20 {
            Self::Whole
        } else if halves <= tiles {
            Self::Halves
        } else {
            Self::Tiles
        }
    }
}

/// The first `shared` floats of the scratch memory, each thread's part of the rest, and on AMX how much of keys it has room to keep.
fn cut<'a>(
    ctx: &'a mut Ctx,
    heads: Heads,
    shared: usize,
    keeping: Keeping,
) -> (&'a mut [f32], Rows<'a>, Option<Keeping>) {
    assert!(ctx.isa.available(), "this processor has no {}", ctx.isa.name());
    let (amx, threads) = (on_amx(ctx.isa, ctx.precision), ctx.pool.threads());
    let each = per_thread(heads, amx);
    let wanted = LINE + shared + each * threads;
    assert!(ctx.scratch.len() >= wanted, "scratch has {} elements of {wanted}", ctx.scratch.len());
    let keeping = amx.then_some(keeping.within((ctx.scratch.len() - wanted) / threads, heads.d));
    let each = each + keeping.map_or(0, |keeping| keeping.len(heads.d));
    let (first, rest) = ctx.scratch.split_at_mut(shared);
    let line = rest.as_ptr().align_offset(4 * LINE);
    let parts = Rows::new(&mut rest[line..line + each * threads], each);
    if let Some(keeping) = keeping {
        (0..threads).for_each(|thread| keeping.forget(parts.piece(thread).0));
    }
    (first, parts, keeping)
}

fn check(heads: Heads, segments: &[Segment], q_len: usize, kv_len: usize) {
    let (q_width, kv_width) = (heads.queries * heads.d, heads.kv * heads.d);
    for s in segments {
        assert!(s.q_len <= s.k_len && (s.q_start + s.q_len) * q_width <= q_len, "{s:?}: {q_len} query elements");
        assert!((s.k_start + s.k_len) * kv_width <= kv_len, "{s:?}: {kv_len} key elements");
    }
}

/// The work on segments, cut into heads that share keys (or parts of those) and tiles of rows.
#[derive(Clone, Copy)]
struct Tasks<'a> {
    heads: Heads,
    segments: &'a [Segment],
    /// Query heads that are worked on together.
    shared: usize,
    /// Groups of heads, over all segments, that are left out.
    first: usize,
}

impl Tasks<'_> {
    /// Each segment with the groups of heads that are left out of it, and all of them.
    fn groups(&self) -> impl Iterator<Item = (&Segment, usize, usize)> {
        let groups = self.heads.queries / self.shared;
        let left_out = move |at: usize| self.first.saturating_sub(at * groups).min(groups);
        self.segments.iter().enumerate().map(move |(at, segment)| (segment, left_out(at), groups))
    }

    /// How many tasks there are where a segment has so many tiles.
    fn count(&self, tiles: impl Fn(&Segment) -> usize) -> usize {
        self.groups().map(|(segment, first, groups)| (groups - first) * tiles(segment)).sum()
    }

    /// One of them, the last tiles of a segment first: where keys come before queries, those of queries cost the most.
    fn locate(&self, mut task: usize, tiles: impl Fn(&Segment) -> usize) -> Task {
        for (&segment, first, groups) in self.groups() {
            let tiles = tiles(&segment);
            if task < (groups - first) * tiles {
                let (group, tile) = (first + task / tiles, tiles - 1 - task % tiles);
                return Task { heads: self.heads, segment, tile, head: group * self.shared, shared: self.shared };
            }
            task -= (groups - first) * tiles;
        }
        unreachable!("the pool runs as many tasks as there are tiles");
    }

    /// One of them, the first tiles first: of keys, those are seen by the most queries.
    fn locate_keys(&self, task: usize, tiles: impl Fn(&Segment) -> usize) -> Task {
        let found = self.locate(task, &tiles);
        Task { tile: tiles(&found.segment) - 1 - found.tile, ..found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_heads_that_are_over_go_where_they_take_the_least_time() {
        // Heads that are over, threads, whether keys are kept, whether halves can meet.
        for (over, threads, keeps, halves, how) in [
            (0, 2, true, true, Over::Whole),
            (1, 2, true, true, Over::Halves),
            (1, 2, false, true, Over::Halves),
            (1, 2, false, false, Over::Tiles),
            (1, 2, true, false, Over::Whole),
            (2, 4, true, true, Over::Halves),
            (3, 4, true, true, Over::Whole),
            (1, 4, false, true, Over::Tiles),
            (1, 4, true, true, Over::Halves),
            (1, 8, true, true, Over::Tiles),
        ] {
            assert!(Over::cheapest(over, threads, keeps, halves) == how, "{over} of {threads}, {keeps}, {halves}");
        }
    }
}
