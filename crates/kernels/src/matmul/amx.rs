//! The products on AMX: bf16 tiles of 16 by 32 of the sum against 32 of the sum by 16, summed in f32.
//!
//! The left operand is copied once, a block of rows at a time, into tiles that all threads share, or into those of one that has these rows to itself; each task dequantises
//! its outputs' part of the weights into tiles in its thread's memory, a block of the sum at a time, and takes all rows over it, 32 by 32 outputs at a time. The sum
//! goes in ascending steps of 32, padded with zeros, and what is summed so far stays with its thread until the last block, so its bits depend on no tiling.
//!
//! Tiles of the instruction's first operand (`rows`) lie as matrices do; those of its second (`cols`) hold pairs of the sum side by
//! side. So weights are the first operand where the sum runs along their rows, and the second where it runs over them: they are
//! never transposed. In the first case it is the output that is.

mod bits;
mod down;
mod fill;
mod memory;
mod nibbles;
mod plain;
mod runs;
mod stage;

use std::ops::Range;

pub(super) use memory::Sizes;
use memory::{Scratch, Threads};

use super::out::Out;
use super::product::{Factor, Left, Product, Right, Tail};
use super::split::Split;
use super::{Ctx, Low, Start};
use crate::amx::{Beside, K_TILE, Pair, SIDE, Square, Tiles};
use crate::pool::own;
use crate::rows::Rows;
use crate::{Pool, Values, ValuesMut};

/// Steps of a sum for which two tiles of the left operand stay in the first-level cache, beside the sums of a task: 32 KiB.
const NEAR_STEPS: usize = 16;
/// A sum of up to as many steps is in one part all the same, whose sums are stored once.
const ONE_PART: usize = 20;
/// Room for tiles of the left operand, in f32 elements, that stay in a thread's cache from one task to the next: 1 MiB.
const NEAR: usize = 1 << 18;
/// f32 elements in the place of a tile.
const TILE: usize = 256;

pub(super) fn run(ctx: &mut Ctx, product: &mut Product) {
    match std::mem::replace(&mut product.out, ValuesMut::F32(&mut [])) {
        ValuesMut::F32(out) => run_to(ctx, product, Out::new(out, product.n)),
        ValuesMut::Bf16(out) => {
            assert!(!matches!(product.start, Start::Output), "a sum in bf16 does not go on");
            run_to(ctx, product, Out::new(out, product.n));
        }
    }
}

fn run_to<T: stage::Stored>(ctx: &mut Ctx, product: &mut Product, out: Out<T>) {
    let (m, k, right, pool) = (product.m, product.k, product.right, ctx.pool);
    let mut tail = product.tail.take();
    let factor = tail.as_ref().map(|tail| tail.factor);
    let rank = factor.map_or(0, |factor| factor.rank);
    let sizes = Sizes::new((m, product.n, k), rank, right.side());
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (packed, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let (down, rest) = rest.split_at_mut(sizes.down);
    let (per_thread, threads) = (sizes.per_thread(), pool.threads());
    let threads_scratch = Threads { parts: Rows::new(&mut rest[..per_thread * threads], per_thread), sizes: &sizes };
    if let Some(Tail { low: Low::Made { by, .. }, .. }) = &tail {
        down::fill(pool, &threads_scratch, right, (rank, k), by, down);
    }
    let low = tail.as_mut().map(|tail| match &mut tail.low {
        Low::Given(h) => LowRows::Given(h),
        Low::Made { scale, into, .. } => LowRows::Made { by: down, scale: *scale, into: Rows::new(into, rank) },
    });
    let work = Run { product, low, factor, packed: Rows::new(packed, 1), threads: threads_scratch, out };
    match sizes.own_rows(m, work.product.n, threads) {
        Some(part) => pool.run(m.div_ceil(part), &|at, thread| {
            work.rows(at * part..m.min((at + 1) * part), &Hands::One(thread));
        }),
        None => work.rows(0..m, &Hands::All(pool)),
    }
}

/// Who works on rows of a product: all threads together, or one that has them to itself.
enum Hands<'a> {
    All(&'a Pool),
    One(usize),
}

impl Hands<'_> {
    fn threads(&self) -> usize {
        match self {
            Hands::All(pool) => pool.threads(),
            Hands::One(_) => 1,
        }
    }

    /// [`Pool::run`].
    fn run(&self, tasks: usize, call: &(dyn Fn(usize, usize) + Sync)) {
        match self {
            Hands::All(pool) => pool.run(tasks, call),
            Hands::One(thread) => (0..tasks).for_each(|task| call(task, *thread)),
        }
    }
}

/// An adapter's low-rank values: there already, or to be made with the tiles of its first factor.
enum LowRows<'a> {
    Given(&'a [f32]),
    Made { by: &'a [f32], scale: f32, into: Rows<'a> },
}

/// A product with all that its threads share.
struct Run<'a, T> {
    product: &'a Product<'a>,
    low: Option<LowRows<'a>>,
    factor: Option<Factor<'a>>,
    packed: Rows<'a>,
    threads: Threads<'a>,
    out: Out<'a, T>,
}

impl<T: stage::Stored> Run<'_, T> {
    /// The outputs of `all` rows, a block of them after another.
    fn rows(&self, all: Range<usize>, hands: &Hands) {
        let (&Product { left, right, n, k, start, again, .. }, sizes) = (self.product, self.threads.sizes);
        let rank = self.factor.map_or(0, |factor| factor.rank);
        let row_block = sizes.row_block(all.len());
        for m0 in all.clone().step_by(row_block) {
            let rows = row_block.min(all.end - m0);
            let blocks = Blocks { k, k_block: sizes.k_block, rank, pairs: rows.div_ceil(SIDE) };
            let at = if sizes.whole { m0 / SIDE * sizes.pair } else { 0 };
            // SAFETY: the tiles of these rows, or of a block of rows at a time, are of those alone that work on them.
            let packed = unsafe { self.packed.range(at..at + blocks.pairs * sizes.pair) };
            // Where all rows of a left operand are held, their tiles are still there.
            let there = again && sizes.whole;
            if !there {
                pack(hands, left.from(m0, 0), rows, &blocks, right, packed);
            }
            if let Some(low) = &self.low {
                let h = match low {
                    LowRows::Given(h) => &h[m0 * rank..(m0 + rows) * rank],
                    LowRows::Made { by, scale, into } => {
                        // SAFETY: these rows are of those alone that work on them.
                        let into = unsafe { into.range(m0 * rank..(m0 + rows) * rank) };
                        down::multiply(hands, &self.threads, right, &blocks, packed, by, *scale, into);
                        into
                    }
                };
                let low = Left { data: Values::F32(h), row: rank, k: 1 };
                pack_low(hands, low, rows, &blocks, right, packed);
            }
            let threads = hands.threads();
            let split = Split::new((rows, n), (sizes.least, sizes.most), SIDE, threads);
            let job = Job { left: packed, right, blocks: &blocks, factor: self.factor, start };
            let alone = matches!(hands, Hands::One(_));
            hands.run(split.tasks(), &|task, thread| {
                let (rows, cols) = split.task(task);
                let (tasks, mine) = if alone {
                    (0..split.tasks(), Packed { own: 0..blocks.pairs, first: false })
                } else {
                    let tasks = own(split.tasks(), thread, threads);
                    let first = !there && task == tasks.start;
                    (tasks, Packed { own: own(blocks.pairs, thread, threads), first })
                };
                let next = if tasks.contains(&(task + 1)) { split.task(task + 1).1 } else { 0..0 };
                job.task(m0, rows, (cols, next), mine, &mut self.threads.of(thread), &self.out);
            });
        }
    }
}

/// How the sum is cut into blocks. The last one goes on over the rank of an adapter.
struct Blocks {
    k: usize,
    /// Whole tiles, unless there is one block only.
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
    /// Where its tiles begin among those of a pair of the left operand's rows, and how many floats those of all blocks take.
    at: usize,
    pair: usize,
}

impl Blocks {
    fn len(&self) -> usize {
        self.k.div_ceil(self.k_block)
    }

    fn each(&self) -> impl Iterator<Item = Block> {
        (0..self.len()).map(|at| self.get(at))
    }

    fn last(&self) -> Block {
        self.get(self.len() - 1)
    }

    fn get(&self, at: usize) -> Block {
        let ks = at * self.k_block..self.k.min((at + 1) * self.k_block);
        let (main, last) = (ks.len().div_ceil(K_TILE), ks.end == self.k);
        let steps = main + if last { self.rank.div_ceil(K_TILE) } else { 0 };
        let before = at * self.k_block.div_ceil(K_TILE);
        let all = self.k.div_ceil(K_TILE) + self.rank.div_ceil(K_TILE);
        Block { ks, main, steps, last, at: 2 * TILE * before, pair: 2 * TILE * all }
    }
}

impl Block {
    /// Where the tiles of a pair of the left operand's rows lie: the same whoever else works on how many others.
    fn tiles(&self, pair: usize) -> Range<usize> {
        let at = pair * self.pair + self.at;
        at..at + 2 * TILE * self.steps
    }
}

/// Rounds `rows` of the left operand and lays them out in tiles, pair by pair of tiles and there block by block.
fn pack(hands: &Hands, left: Left, rows: usize, blocks: &Blocks, right: Right, to: &mut [f32]) {
    let all = Rows::new(to, 1);
    hands.run(blocks.pairs, &|pair, _| {
        for block in blocks.each() {
            // SAFETY: these tiles are this task's.
            let to = unsafe { all.range(block.tiles(pair)) };
            let place = fill::Place { first: 0, steps: block.steps };
            lay(left.from(0, block.ks.start), rows, pair, block.ks.len(), place, right, to);
        }
    });
}

/// The same of low-rank values, after the last block.
fn pack_low(hands: &Hands, low: Left, rows: usize, blocks: &Blocks, right: Right, to: &mut [f32]) {
    let (all, block) = (Rows::new(to, 1), blocks.last());
    hands.run(blocks.pairs, &|pair, _| {
        // SAFETY: these tiles are this task's.
        let to = unsafe { all.range(block.tiles(pair)) };
        lay(low, rows, pair, blocks.rank, fill::Place { first: block.main, steps: block.steps }, right, to);
    });
}

/// Lays out `len` columns of a pair of the `rows`.
fn lay(left: Left, rows: usize, pair: usize, len: usize, place: fill::Place, right: Right, to: &mut [f32]) {
    let rows = pair * SIDE..rows.min((pair + 1) * SIDE);
    // SAFETY: the product checked that this processor has the instructions.
    unsafe {
        match right {
            Right::Rows(_) => fill::left_cols(left, rows, len, place, to),
            Right::Cols(_) => fill::left_rows(left, rows, len, place, to),
        }
    }
}

/// What a task's thread has packed of the left operand.
struct Packed {
    /// Pairs of tiles of its rows.
    own: Range<usize>,
    /// Whether the others were not read by this thread yet.
    first: bool,
}

/// A block of the left operand's rows, ready to be multiplied.
struct Job<'a> {
    left: &'a [f32],
    right: Right<'a>,
    blocks: &'a Blocks,
    /// The adapter's factor: the last block's sum goes on over its rows.
    factor: Option<Factor<'a>>,
    start: Start<'a>,
}

impl Job<'_> {
    /// Sums for `rows` of the block, which begins at row `m0` of the output, and for columns `cols`; columns `next` are this thread's next.
    /// It begins with what its thread has packed and asks for the rest meanwhile, for the output, and for what it dequantises next.
    fn task<T: stage::Stored>(
        &self,
        m0: usize,
        rows: Range<usize>,
        (cols, next): (Range<usize>, Range<usize>),
        packed: Packed,
        scratch: &mut Scratch,
        out: &Out<T>,
    ) {
        let (first, end) = (rows.start / SIDE, rows.end.div_ceil(SIDE));
        let begin = if (first..end).contains(&packed.own.start) { packed.own.start } else { first };
        let pairs = (begin..end).chain(first..begin);
        // What another thread packed is far once; what this thread's cache does not hold beside weights, in every task.
        let far = self.blocks.last().tiles(self.blocks.pairs - 1).end > NEAR;
        let near = if far { 1 } else { packed.own.len().max(1) };
        let transposed = matches!(self.right, Right::Rows(_));
        let stage = |pair: usize| {
            let i = m0 + pair * SIDE;
            stage::Stage { rows: i..(m0 + rows.end).min(i + SIDE), cols: cols.clone(), transposed }
        };
        for (at, block) in self.blocks.each().enumerate() {
            self.weights(&block, &cols, scratch);
            // SAFETY: the product checked that this processor has AMX and that its kernel lets us use it.
            let tiles = unsafe { Tiles::configure() };
            let goes_on = at == 0 && matches!(self.start, Start::Output);
            let steps = block.steps * cols.len().div_ceil(SIDE);
            let coming = if block.last { (0, next.clone()) } else { (at + 1, cols.clone()) };
            for (order, pair) in pairs.clone().enumerate() {
                let (now, sums) = (stage(pair), scratch.sums.at(order));
                // SAFETY: the product checked the instructions; this task alone touches these rows and columns.
                unsafe {
                    if goes_on && order == 0 {
                        now.fetch(out);
                    }
                    if at == 0 {
                        now.begin(self.start, out, sums);
                    }
                }
                let left = match pairs.clone().nth(order + near) {
                    Some(next) if far || packed.first => block.tiles(next),
                    None if far && !block.last => self.blocks.get(at + 1).tiles(begin),
                    _ => 0..0,
                };
                let left = &self.left[left];
                let output = match pairs.clone().nth(order + 1) {
                    Some(next) if goes_on => stage(next).ahead(out, steps),
                    _ if block.last && !goes_on => now.ahead(out, steps),
                    _ => stage::Ahead::NONE,
                };
                let mut beside = [
                    stage::Ahead::new(left.as_ptr(), 1, size_of_val(left), 0, steps),
                    output,
                    self.weights_ahead(&coming, order, end - first, steps),
                ];
                let zero = at == 0 && matches!(self.start, Start::Zero);
                self.squares(&tiles, &block, pair, &now, zero, scratch.weights, sums, &mut beside);
                if block.last {
                    // SAFETY: as above.
                    unsafe { now.end(out, sums) };
                }
            }
        }
    }

    /// Asks for part `part` of `parts` of what is dequantised for block `at` and columns `cols`, beside `steps`: all of it where whole rows are, and
    /// otherwise what columns begin with, which ask for the rest themselves.
    fn weights_ahead(
        &self,
        (at, cols): &(usize, Range<usize>),
        part: usize,
        parts: usize,
        steps: usize,
    ) -> stage::Ahead {
        let ks = self.blocks.get(*at).ks;
        let (w, rows, cols) = match &self.right {
            Right::Rows(w) => (w, cols.clone(), ks),
            // Values are not dequantised.
            Right::Cols(w) if w.values().is_some() => return stage::Ahead::NONE,
            Right::Cols(w) => (w, ks.start..ks.end.min(ks.start + runs::ROWS_AHEAD), cols.clone()),
        };
        let row = |part: usize| rows.start + rows.len() * part / parts;
        match w.blocks_of(row(part), &cols) {
            Some(blocks) => {
                stage::Ahead::new(blocks.as_ptr(), row(part + 1) - row(part), blocks.len(), w.stride(), steps)
            }
            None => stage::Ahead::NONE,
        }
    }

    /// A block of the weights for columns `cols` into tiles, and of an adapter's factor after the last.
    fn weights(&self, block: &Block, cols: &Range<usize>, scratch: &mut Scratch) {
        let (ks, steps) = (block.ks.clone(), block.steps);
        let (place, tail) = (fill::Place { first: 0, steps }, fill::Place { first: block.main, steps });
        let factor = self.factor.as_ref().filter(|_| block.last);
        let Scratch { buffer, weights, .. } = scratch;
        // SAFETY: the product checked that this processor has the instructions.
        unsafe {
            match &self.right {
                Right::Rows(w) => {
                    fill::weight_rows(w, cols.clone(), ks, place, buffer, weights);
                    if let Some(factor) = factor {
                        fill::factor_rows(factor, cols.clone(), tail, weights);
                    }
                }
                Right::Cols(w) => {
                    fill::weight_cols(w, cols.clone(), ks, place, buffer, weights);
                    if let Some(factor) = factor {
                        let w = factor.weight();
                        fill::weight_cols(&w, cols.clone(), 0..factor.rank, tail, buffer, weights);
                    }
                }
            }
        }
    }

    /// Adds a block's products of a pair of rows with all columns of the stage to its `sums`, some steps of the sum at a time, so that these rows' tiles stay in
    /// the first-level cache from one square to the next; the weights' go past it.
    #[allow(clippy::too_many_arguments)]
    fn squares(
        &self,
        tiles: &Tiles,
        block: &Block,
        pair: usize,
        stage: &stage::Stage,
        zero: bool,
        weights: &[f32],
        sums: &mut [f32],
        beside: &mut impl Beside,
    ) {
        let (all, left) = (block.steps, &self.left[block.tiles(pair)]);
        let (m, parts) = (stage.rows.len(), if all <= ONE_PART { 1 } else { all.div_ceil(NEAR_STEPS) });
        for part in 0..parts {
            let (first, end) = (all * part / parts, all * (part + 1) / parts);
            for j in (0..stage.cols.len()).step_by(SIDE) {
                let n = stage.cols.len() - j;
                let weights = &weights[j / SIDE * left.len()..][..left.len()];
                let sums = &mut sums[j * SIDE..][..SIDE * SIDE];
                let (rows, cols, two_rows, two_cols) = match stage.transposed {
                    true => (row_tiles(weights, first, all).past(), col_tiles(left, first), n > 16, m > 16),
                    false => (row_tiles(left, first, all), col_tiles(weights, first).past(), m > 16, n > 16),
                };
                let sums = Square { at: sums.as_mut_ptr(), line: SIDE };
                // SAFETY: two runs of `all` tiles, `all` pairs of tiles (both slices are as long), and a whole square.
                unsafe { tiles.sum(rows, cols, end - first, zero && part == 0, sums, two_rows, two_cols, beside) };
            }
        }
    }
}

/// Two runs of `steps` tiles of rows, one after the other, from tile `first` on.
fn row_tiles(tiles: &[f32], first: usize, steps: usize) -> Pair {
    Pair { at: tiles[first * TILE..].as_ptr(), line: 16, second: steps * TILE, step: TILE, past: false }
}

/// Pairs of tiles of columns, from pair `first` on.
fn col_tiles(tiles: &[f32], first: usize) -> Pair {
    Pair { at: tiles[2 * first * TILE..].as_ptr(), line: 16, second: TILE, step: 2 * TILE, past: false }
}
