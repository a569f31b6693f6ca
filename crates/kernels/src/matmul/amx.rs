//! The products on AMX: bf16 tiles of 16 by 32 of the sum against 32 of the sum by 16, summed in f32.
//!
//! The left operand is copied once, a block at a time, into tiles that all threads share; each task dequantises its outputs' part
//! of the weights into tiles in its thread's memory and takes all rows of the block over it, 32 by 32 outputs at a time. The sum
//! goes in ascending blocks of 32, padded with zeros, and continues from the output, so its bits depend on no tiling.
//!
//! Tiles of the instruction's first operand (`rows`) lie as matrices do; those of its second (`cols`) hold pairs of the sum side by
//! side. So weights are the first operand where the sum runs along their rows, and the second where it runs over them: they are
//! never transposed. In the first case it is the output that is.

mod bits;
mod down;
mod fill;
mod nibbles;
mod plain;
mod runs;
mod stage;

use std::ops::Range;

use super::out::Out;
use super::product::{Factor, Left, Product, Right, Side, Tail};
use super::split::Split;
use super::{Ctx, Low, Start};
use crate::amx::{K_TILE, Pair, SIDE, Square, Tiles};
use crate::pool::own;
use crate::rows::Rows;
use crate::{BlockType, Pool, Values, ValuesMut};

/// Rows and length of a block of the left operand: 2 MiB, a second-level cache. The length is whole blocks of every type.
const LEFT_ROWS: usize = 512;
const LEFT_K: usize = 2048;
/// Elements of the longest block of weights.
const LONGEST_BLOCK: usize = 256;
/// Elements of the left operand that are held as tiles at once where an adapter reads them too, and the longest sum for that.
const LEFT_AREA: usize = 5 << 20;
pub(super) const LONGEST_SHARED: usize = 16 << 10;
/// Outputs of a task at most, unless a block of the weights is longer.
const UNIT: usize = 128;
/// Elements of a block of the left operand, as f32, that stay in a thread's cache from one task to the next: 1 MiB.
const NEAR: usize = 1 << 18;
/// f32 elements in the place of a tile.
const TILE: usize = 256;

/// Scratch memory, in f32 elements: the left operand, an adapter's first factor, then for each thread tiles of weights, a row buffer
/// and sums.
pub(super) struct Sizes {
    /// Rows of the left operand that are worked on at once.
    row_block: usize,
    left: usize,
    /// The first factor of an adapter of this rank.
    down: usize,
    least: usize,
    most: usize,
    /// Length of a block of the sum.
    k_block: usize,
    weights: usize,
    buffer: usize,
    sums: usize,
}

impl Sizes {
    pub fn new((m, n, k): (usize, usize, usize), rank: usize, side: Side) -> Self {
        let (least, most, k_block) = match side {
            Side::Cols(ty) if ty.block_len() > UNIT => (ty.block_len(), ty.block_len(), LEFT_K / 2),
            // Values rather than weights, and many rows of them: long pieces of a row come faster from far caches.
            Side::Cols(BlockType::F32) => (SIDE, 4 * UNIT, LEFT_K / 4),
            _ => (SIDE, UNIT, equal_blocks(k)),
        };
        let tail = rank.next_multiple_of(K_TILE);
        let padded = k.min(k_block).next_multiple_of(K_TILE) + tail;
        let buffer = match side {
            Side::Rows => padded / 2,
            Side::Cols(_) => most,
        };
        let whole = k.next_multiple_of(K_TILE);
        let (most_rows, held, down) = if rank == 0 || k > LONGEST_SHARED {
            (LEFT_ROWS, padded, 0)
        } else {
            let rows = (LEFT_AREA / whole.max(1)).clamp(2 * SIDE, LEFT_ROWS) / SIDE * SIDE;
            (rows, whole + tail, rank.next_multiple_of(SIDE) * whole / 2)
        };
        let left = m.min(most_rows).next_multiple_of(SIDE) * held / 2;
        // Every block of rows dequantises the weights anew, so none is a small rest.
        let row_block = m.div_ceil(m.div_ceil(most_rows).max(1)).next_multiple_of(SIDE);
        let unit = most.min(n.next_multiple_of(SIDE));
        Self { row_block, left, down, least, most, k_block, weights: unit * padded / 2, buffer, sums: 2 * unit * SIDE }
    }

    fn per_thread(&self) -> usize {
        (self.weights + self.buffer + self.sums).next_multiple_of(16)
    }

    /// All of it, with room to begin at a cache line.
    pub fn total(&self, threads: usize) -> usize {
        self.left + self.down + threads * self.per_thread() + 16
    }
}

/// The length of a sum's blocks, no longer than [`LEFT_K`] and as equal as whole blocks of every type allow.
fn equal_blocks(k: usize) -> usize {
    if k <= LEFT_K { LEFT_K } else { k.div_ceil(k.div_ceil(LEFT_K)).next_multiple_of(LONGEST_BLOCK) }
}

/// A thread's scratch memory.
struct Scratch<'a> {
    weights: &'a mut [f32],
    buffer: &'a mut [f32],
    /// Those that are summed now, and those before them, on their way to the output.
    sums: [&'a mut [f32]; 2],
}

/// The longest sum that is one block.
pub(super) fn longest(side: Side) -> usize {
    Sizes::new((0, 0, 0), 0, side).k_block
}

pub(super) fn run(ctx: &mut Ctx, product: &mut Product) {
    match std::mem::replace(&mut product.out, ValuesMut::F32(&mut [])) {
        ValuesMut::F32(out) => run_to(ctx, product, Out::new(out, product.n)),
        ValuesMut::Bf16(out) => {
            let (longest, start) = (longest(product.right.side()), product.start);
            assert!(product.k <= longest, "a sum of {} in bf16, {longest} at most", product.k);
            assert!(!matches!(start, Start::Output), "a sum in bf16 does not go on");
            run_to(ctx, product, Out::new(out, product.n));
        }
    }
}

fn run_to<T: stage::Stored>(ctx: &mut Ctx, product: &mut Product, out: Out<T>) {
    let (m, n, k, right) = (product.m, product.n, product.k, product.right);
    let rank = product.tail.as_ref().map_or(0, |tail| tail.factor.rank);
    let sizes = Sizes::new((m, n, k), rank, right.side());
    let threads = ctx.pool.threads();
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (packed, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let (down, rest) = rest.split_at_mut(sizes.down);
    let per_thread = sizes.per_thread();
    let threads_scratch = Threads { parts: Rows::new(&mut rest[..per_thread * threads], per_thread), sizes: &sizes };
    let mut tail = product.tail.take();
    // Where a left operand was packed whole, its tiles are still there.
    let whole = k <= sizes.k_block || matches!(&tail, Some(Tail { low: Low::Made { .. }, .. }));
    let there = product.again && m <= sizes.row_block && whole;
    if let Some(Tail { low: Low::Made { by, .. }, .. }) = &tail {
        down::fill(ctx.pool, &threads_scratch, right, (rank, k), by, down);
    }
    for m0 in (0..m).step_by(sizes.row_block) {
        let rows = sizes.row_block.min(m - m0);
        let split = Split::new((rows, n), (sizes.least, sizes.most), SIDE, threads);
        let left = product.left.from(m0, 0);
        let blocks = Blocks { k, k_block: sizes.k_block, rank, pairs: rows.div_ceil(SIDE) };
        // Where an adapter's low-rank values are made of the whole left operand first, it is packed once, for both.
        let made = match &mut tail {
            Some(Tail { low: Low::Made { scale, into, .. }, .. }) => {
                if !there {
                    blocks.each(|block| pack(ctx.pool, left, rows, &block, right, &mut packed[block.at..]));
                }
                let into = &mut into[m0 * rank..(m0 + rows) * rank];
                down::multiply(ctx.pool, &threads_scratch, right, &blocks, packed, down, *scale, into);
                true
            }
            _ => false,
        };
        let low = tail.as_ref().map(|tail| {
            let h = match &tail.low {
                Low::Given(h) => h,
                Low::Made { into, .. } => &**into,
            };
            Left { data: Values::F32(&h[m0 * rank..]), row: rank, k: 1 }
        });
        blocks.each(|block| {
            let packed = if made { &mut packed[block.at..] } else { &mut packed[..] };
            if !made && !there {
                pack(ctx.pool, left, rows, &block, right, packed);
            }
            if let (Some(low), true) = (low, block.last) {
                let place = fill::Place { first: block.main, steps: block.steps };
                pack_at(ctx.pool, low, rows, 0..rank, place, right, packed);
            }
            let factor = tail.as_ref().filter(|_| block.last).map(|tail| tail.factor);
            let start = if block.ks.start == 0 { product.start } else { Start::Output };
            let left_len = 2 * TILE * block.steps * blocks.pairs;
            let job = Job { left: packed, right, block: &block, factor, start, left_len };
            ctx.pool.run(split.tasks(), &|task, thread| {
                let (rows, cols) = split.task(task);
                let first = !there && task == own(split.tasks(), thread, threads).start;
                let mine = Packed { own: own(blocks.pairs, thread, threads), first };
                job.task(m0, rows, cols, mine, &mut threads_scratch.of(thread), &out);
            });
        });
    }
}

/// The threads' scratch memory.
struct Threads<'a> {
    parts: Rows<'a>,
    sizes: &'a Sizes,
}

impl Threads<'_> {
    /// That of one thread, which must be the one that runs.
    fn of(&self, thread: usize) -> Scratch<'_> {
        let mine = self.parts.piece(thread).0;
        let (weights, rest) = mine.split_at_mut(self.sizes.weights);
        let (sums, rest) = rest.split_at_mut(self.sizes.sums);
        let (now, before) = sums.split_at_mut(self.sizes.sums / 2);
        Scratch { weights, sums: [now, before], buffer: &mut rest[..self.sizes.buffer] }
    }
}

/// How the sum is cut into blocks. The last one goes on over the rank of an adapter.
struct Blocks {
    k: usize,
    k_block: usize,
    rank: usize,
    /// Pairs of tiles of the left operand's rows.
    pairs: usize,
}

/// A block of the sum.
struct Block {
    ks: Range<usize>,
    /// Tiles of the sum, those of the rank not counted and counted.
    main: usize,
    steps: usize,
    last: bool,
    /// Where its part of a left operand begins that is packed whole.
    at: usize,
}

impl Blocks {
    fn each(&self, mut see: impl FnMut(Block)) {
        let mut at = 0;
        for k0 in (0..self.k).step_by(self.k_block) {
            let ks = k0..self.k.min(k0 + self.k_block);
            let (main, last) = (ks.len().div_ceil(K_TILE), ks.end == self.k);
            let steps = main + if last { self.rank.div_ceil(K_TILE) } else { 0 };
            see(Block { ks, main, steps, last, at });
            at += self.pairs * 2 * TILE * steps;
        }
    }
}

/// Rounds a block of `rows` of the left operand and lays it out in tiles, pair by pair of them.
fn pack(pool: &Pool, left: Left, rows: usize, block: &Block, right: Right, to: &mut [f32]) {
    pack_at(pool, left, rows, block.ks.clone(), fill::Place { first: 0, steps: block.steps }, right, to);
}

fn pack_at(pool: &Pool, left: Left, rows: usize, ks: Range<usize>, place: fill::Place, right: Right, to: &mut [f32]) {
    let left = left.from(0, ks.start);
    let pair = 2 * TILE * place.steps;
    let pairs = rows.div_ceil(SIDE);
    let pieces = Rows::new(&mut to[..pairs * pair], pair);
    pool.run(pairs, &|pair, _| {
        let rows = pair * SIDE..rows.min((pair + 1) * SIDE);
        let to = pieces.piece(pair).0;
        // SAFETY: the product checked that this processor has the instructions.
        unsafe {
            match right {
                Right::Rows(_) => fill::left_cols(left, rows, ks.len(), place, to),
                Right::Cols(_) => fill::left_rows(left, rows, ks.len(), place, to),
            }
        }
    });
}

/// What a task's thread has packed of the left operand.
struct Packed {
    /// Pairs of tiles of its rows.
    own: Range<usize>,
    /// Whether the others were not read by this thread yet.
    first: bool,
}

/// A block of the left operand's rows and of the sum, ready to be multiplied.
struct Job<'a> {
    left: &'a [f32],
    right: Right<'a>,
    block: &'a Block,
    /// The adapter's factor, in the last block: the sum goes on over its rows.
    factor: Option<Factor<'a>>,
    start: Start<'a>,
    /// Elements of the block of the left operand, as tiles.
    left_len: usize,
}

impl Job<'_> {
    /// Sums for `rows` of the block, which begins at row `m0` of the output, and for columns `cols`.
    /// It begins with what its thread has packed and asks for the rest meanwhile.
    fn task<T: stage::Stored>(
        &self,
        m0: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        packed: Packed,
        scratch: &mut Scratch,
        out: &Out<T>,
    ) {
        let (ks, steps) = (self.block.ks.clone(), self.block.steps);
        let (place, tail) = (fill::Place { first: 0, steps }, fill::Place { first: self.block.main, steps });
        let Scratch { buffer, weights, .. } = &mut *scratch;
        // SAFETY: the product checked that this processor has the instructions.
        unsafe {
            match &self.right {
                Right::Rows(w) => {
                    fill::weight_rows(w, cols.clone(), ks, place, buffer, weights);
                    if let Some(factor) = &self.factor {
                        fill::factor_rows(factor, cols.clone(), tail, weights);
                    }
                }
                Right::Cols(w) => {
                    fill::weight_cols(w, cols.clone(), ks, place, buffer, weights);
                    if let Some(factor) = &self.factor {
                        let w = factor.weight();
                        fill::weight_cols(&w, cols.clone(), 0..factor.rank, tail, buffer, weights);
                    }
                }
            }
        }
        // SAFETY: the product checked that this processor has AMX and that its kernel lets us use it.
        let tiles = unsafe { Tiles::configure() };
        let pair = 2 * TILE * steps;
        let transposed = matches!(self.right, Right::Rows(_));
        let [mut now, mut before] = scratch.sums.each_mut().map(|sums| &mut **sums);
        let mut done: Option<stage::Stage> = None;
        let (first, end) = (rows.start / SIDE, rows.end.div_ceil(SIDE));
        let begin = if (first..end).contains(&packed.own.start) { packed.own.start } else { first };
        let pairs = (begin..end).chain(first..begin);
        // What another thread packed is far once; what this thread's cache does not hold beside weights, for every task.
        let far = self.left_len > NEAR;
        let near = if far { 1 } else { packed.own.len().max(1) };
        let mut ahead = pairs.clone().skip(near).filter(|_| far || packed.first);
        for pair_of in pairs {
            let i = pair_of * SIDE;
            let stage = stage::Stage { rows: m0 + i..m0 + rows.end.min(i + SIDE), cols: cols.clone(), transposed };
            // SAFETY: the product checked the instructions; this task alone touches these rows and columns.
            unsafe { stage.begin(self.start, out, now) };
            let left = &self.left[pair_of * pair..][..pair];
            let all_steps = steps * cols.len().div_ceil(SIDE);
            let next = ahead.next().map_or(&[][..], |next| &self.left[next * pair..][..pair]);
            let ahead = stage::Ahead::new(next, all_steps);
            let mut beside = if transposed {
                let before = done.as_ref().map(|done| (done, &*before));
                stage::Work::Passage(stage::Passage::new(&stage, before, out, all_steps, ahead))
            } else {
                stage::Work::Ahead(ahead)
            };
            let weights = scratch.weights.chunks_exact(pair).zip(now.chunks_exact_mut(SIDE * SIDE));
            for ((weights, sums), j) in weights.zip(cols.clone().step_by(SIDE)) {
                let (m, n) = (stage.rows.len(), cols.end - j);
                let zero = matches!(self.start, Start::Zero);
                let (rows, cols, two_rows, two_cols) =
                    if transposed { (weights, left, n > 16, m > 16) } else { (left, weights, m > 16, n > 16) };
                let rows = Pair { at: rows.as_ptr(), line: 16, second: steps * TILE, step: TILE };
                let cols = Pair { at: cols.as_ptr(), line: 16, second: TILE, step: 2 * TILE };
                let sums = Square { at: sums.as_mut_ptr(), line: SIDE };
                // SAFETY: two runs of `steps` tiles, `steps` pairs of tiles (both slices are a `pair`), and a whole square; what is
                // written beside is of other rows.
                unsafe {
                    use stage::Work::{Ahead, Passage};
                    match &mut beside {
                        Passage(passage) => tiles.sum(rows, cols, steps, zero, sums, two_rows, two_cols, passage),
                        Ahead(ahead) => tiles.sum(rows, cols, steps, zero, sums, two_rows, two_cols, ahead),
                    }
                }
            }
            match beside {
                // SAFETY: as above.
                stage::Work::Passage(passage) => unsafe { passage.finish() },
                // SAFETY: as above.
                stage::Work::Ahead(_) => unsafe { stage.end(out, now) },
            }
            if transposed {
                done = Some(stage);
                std::mem::swap(&mut now, &mut before);
            }
        }
        if let Some(stage) = done {
            // SAFETY: as above.
            unsafe { stage.end(out, before) };
        }
    }
}
