//! The products on AMX: bf16 tiles of 16 by 32 of the sum against 32 of the sum by 16, summed in f32.
//!
//! The left operand is copied once, a block of rows at a time, into tiles that all threads share, or into those of one that has these rows to itself; each task takes
//! a strip of 32 outputs after another, whose part of the weights lies as tiles in its thread's memory, and takes all rows over it, 32 at a time. The tile unit is busy
//! with that, and the rest of the processor is not: so the next strip is dequantised meanwhile, the square before is written, the one that follows is begun. The sum
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
mod squares;
mod stage;
mod sweep;

use std::ops::Range;

pub(super) use memory::Sizes;
use memory::{Scratch, Threads};
use runs::{Cols, Filling, Nothing, Run, Runs, Strip, by_type};
use squares::{Now, Order, Squares};
use stage::Ahead;
use sweep::{Sweep, Turn, Turns};

use super::out::Out;
use super::product::{Factor, Left, Product, Right, Tail};
use super::split::Split;
use super::{Ctx, Low, Start};
use crate::amx::{K_TILE, Pair, SIDE, Tiles};
use crate::pool::own;
use crate::rows::Rows as Shared;
use crate::{Pool, Values, ValuesMut};

/// f32 elements in the place of a tile, and of a square.
const TILE: usize = 256;
const SQUARE: usize = SIDE * SIDE;

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
    let threads_scratch = Threads { parts: Shared::new(&mut rest[..per_thread * threads], per_thread), sizes: &sizes };
    if let Some(Tail { low: Low::Made { by, .. }, .. }) = &tail {
        down::fill(pool, right, (rank, k), by, down);
    }
    let low = tail.as_mut().map(|tail| match &mut tail.low {
        Low::Given(h) => LowRows::Given(h),
        Low::Made { scale, into, .. } => LowRows::Made { by: down, scale: *scale, into: Shared::new(into, rank) },
    });
    let work = All { product, low, factor, packed: Shared::new(packed, 1), threads: threads_scratch, out };
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
    Made { by: &'a [f32], scale: f32, into: Shared<'a> },
}

/// A product with all that its threads share.
struct All<'a, T> {
    product: &'a Product<'a>,
    low: Option<LowRows<'a>>,
    factor: Option<Factor<'a>>,
    packed: Shared<'a>,
    threads: Threads<'a>,
    out: Out<'a, T>,
}

impl<T: stage::Stored> All<'_, T> {
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
            let split = Split::new((rows, n), (SIDE, sizes.most), SIDE, threads);
            let job = Job { left: packed, right, blocks: &blocks, factor: self.factor, start, filled: sizes.filled };
            let alone = matches!(hands, Hands::One(_));
            hands.run(split.tasks(), &|task, thread| {
                let (rows, cols) = split.task(task);
                let packed = if alone {
                    Packed { own: 0..blocks.pairs, first: false }
                } else {
                    let first = !there && task == own(split.tasks(), thread, threads).start;
                    Packed { own: own(blocks.pairs, thread, threads), first }
                };
                job.task(m0, rows, cols, &packed, self.threads.of(thread), &self.out);
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
    let all = Shared::new(to, 1);
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
    let (all, block) = (Shared::new(to, 1), blocks.last());
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
    /// Outputs that are filled at once, where they are not filled beside sums.
    filled: usize,
}

impl<'a> Job<'a> {
    /// Sums for `rows` of the block, which begins at row `m0` of the output, and for columns `cols`. It begins with what its thread has packed and asks for the
    /// rest meanwhile, and for the next block's.
    fn task<T: stage::Stored>(
        &self,
        m0: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        packed: &Packed,
        scratch: Scratch,
        out: &Out<T>,
    ) {
        let (first, end) = (rows.start / SIDE, rows.end.div_ceil(SIDE));
        let begin = if (first..end).contains(&packed.own.start) { packed.own.start } else { first };
        let order = Order { first, end, begin };
        let Scratch { weights, sums, buffer } = scratch;
        let (transposed, wait) = (self.transposed(), self.blocks.len() > 1);
        let squares = Squares {
            order,
            rows: m0 + rows.start..m0 + rows.end,
            cols: cols.clone(),
            transposed,
            start: self.start,
            out,
            sums,
            wait,
        };
        // SAFETY: the product checked that this processor has AMX and that its kernel lets us use it.
        let tiles = unsafe { Tiles::configure() };
        let mut turns =
            Round { job: self, squares, strip: 0, strips: cols.len().div_ceil(SIDE), at: 0, first: packed.first };
        // SAFETY: the product checked the instructions; this task alone touches these rows and columns.
        unsafe { turns.squares.begin() };
        match self.runs() {
            Some(runs) => self.beside(runs, &cols, weights, &tiles, &mut turns),
            None => self.after(&cols, weights, buffer, &tiles, &mut turns),
        }
        // SAFETY: as above.
        unsafe { turns.squares.end() };
    }

    fn transposed(&self) -> bool {
        matches!(self.right, Right::Rows(_))
    }

    /// The weights as runs, where they are. (Values are not: nothing is left to do for them beside sums, and long pieces of rows are brought faster.)
    fn runs(&self) -> Option<Runs<'a>> {
        match &self.right {
            Right::Rows(w) => Runs::of(w),
            Right::Cols(w) if w.values().is_some() => None,
            Right::Cols(w) => Runs::of(w),
        }
    }

    /// A task whose weights become tiles a strip at a time, beside the sums of the strip before.
    fn beside<T: stage::Stored>(
        &self,
        runs: Runs<'a>,
        cols: &Range<usize>,
        weights: &mut [f32],
        tiles: &Tiles,
        turns: &mut Round<T>,
    ) {
        let (strips, blocks) = (turns.strips, self.blocks.len());
        let transposed = self.transposed();
        let (mut now, mut next) = weights.split_at_mut(weights.len() / 2);
        let outputs = |item: usize| {
            let j = cols.start + item % strips * SIDE;
            j..cols.end.min(j + SIDE)
        };
        // SAFETY: the product checked that this processor has the instructions.
        unsafe { by_type!(runs.ty, R => fill_alone::<R>(transposed, runs, self.strip(0, outputs(0), 1, now))) };
        self.tail(0, outputs(0), now);
        for item in 0..blocks * strips {
            (turns.at, turns.strip) = (item / strips, item % strips);
            let sweep = self.sweep(tiles, &self.blocks.get(turns.at), now, turns.squares.order);
            // SAFETY: the product checked the instructions. Both operands have all tiles: those of weights by the sizes of its scratch memory.
            unsafe {
                if item + 1 < blocks * strips {
                    let to_come = self.blocks.get((item + 1) / strips).main;
                    let each = (SIDE / 2 * to_come).div_ceil(sweep.steps * sweep.count);
                    let coming = self.strip((item + 1) / strips, outputs(item + 1), each, next);
                    by_type!(runs.ty, R => sweep_filling::<R>(transposed, runs, coming, &sweep, turns));
                    self.tail((item + 1) / strips, outputs(item + 1), next);
                } else {
                    sweep::sweep::<Nothing, true, true>(Nothing, &sweep, turns);
                }
            }
            (now, next) = (next, now);
        }
    }

    /// The strip of outputs `js` in a block of the sum, `each` pairs of runs to be filled at once.
    fn strip<'s>(&self, block: usize, js: Range<usize>, each: usize, to: &'s mut [f32]) -> Strip<'s> {
        let block = self.blocks.get(block);
        Strip { js, ks: block.ks, place: fill::Place { first: 0, steps: block.steps }, to, each }
    }

    /// A task whose weights become tiles before their sums.
    fn after<T: stage::Stored>(
        &self,
        cols: &Range<usize>,
        weights: &mut [f32],
        buffer: &mut [f32],
        tiles: &Tiles,
        turns: &mut Round<T>,
    ) {
        for (at, block) in self.blocks.each().enumerate() {
            for j in cols.clone().step_by(self.filled) {
                let js = j..cols.end.min(j + self.filled);
                let place = fill::Place { first: 0, steps: block.steps };
                // SAFETY: the product checked that this processor has the instructions.
                unsafe {
                    match &self.right {
                        Right::Rows(w) => {
                            fill::weight_rows(w, js.clone(), block.ks.clone(), place, buffer, weights);
                        }
                        Right::Cols(w) => {
                            fill::weight_cols(w, js.clone(), block.ks.clone(), place, buffer, weights);
                        }
                    }
                }
                self.tail(at, js.clone(), weights);
                for (strip, weights) in js.clone().step_by(SIDE).zip(weights.chunks_exact(2 * TILE * block.steps)) {
                    (turns.at, turns.strip) = (at, (strip - cols.start) / SIDE);
                    let sweep = self.sweep(tiles, &block, weights, turns.squares.order);
                    let few = turns.squares.rows.len() <= 16;
                    // SAFETY: as in `beside`.
                    unsafe {
                        match (few, self.transposed()) {
                            (false, _) => sweep::sweep::<Nothing, true, true>(Nothing, &sweep, turns),
                            (true, true) => sweep::sweep::<Nothing, true, false>(Nothing, &sweep, turns),
                            (true, false) => sweep::sweep::<Nothing, false, true>(Nothing, &sweep, turns),
                        }
                    }
                }
            }
        }
    }

    /// What the last block goes on with, the adapter's factor for outputs `js`, into tiles behind those of the weights.
    fn tail(&self, block: usize, js: Range<usize>, weights: &mut [f32]) {
        let block = self.blocks.get(block);
        let Some(factor) = self.factor.as_ref().filter(|_| block.last) else { return };
        let place = fill::Place { first: block.main, steps: block.steps };
        // SAFETY: the product checked that this processor has the instructions.
        unsafe {
            if self.transposed() {
                fill::factor_rows(factor, js, place, weights);
            } else {
                fill::weight_cols(&factor.weight(), js, 0..factor.rank, place, &mut [], weights);
            }
        }
    }

    /// A block's sums of a strip, whose tiles are `weights`, with the pairs of `order`.
    fn sweep<'s>(&self, tiles: &'s Tiles, block: &Block, weights: &[f32], order: Order) -> Sweep<'s> {
        let (left, steps) = (&self.left[block.at..], block.steps);
        assert!(weights.len() >= 2 * TILE * steps && self.left.len() >= block.tiles(order.end - 1).end, "tiles");
        let (rows, cols, apart) = if self.transposed() {
            (row_tiles(weights, 0, steps), col_tiles(left, 0), (0, block.pair))
        } else {
            (row_tiles(left, 0, steps), col_tiles(weights, 0), (block.pair, 0))
        };
        Sweep { tiles, rows, cols, apart, steps, count: order.len() }
    }
}

/// What goes on round by round of a task's strips.
struct Round<'j, 'a, T> {
    job: &'j Job<'a>,
    squares: Squares<'j, T>,
    /// The block and the strip.
    at: usize,
    strip: usize,
    strips: usize,
    /// Whether what other threads have packed is far.
    first: bool,
}

impl<T: stage::Stored> Round<'_, '_, T> {
    fn now(&self, at: usize) -> Now {
        Now { strip: self.strip, at, first: self.at == 0, last: self.at + 1 == self.job.blocks.len() }
    }

    /// Tiles of the left operand that are asked for beside the sums of pair `at`: the next pair's, where another thread has packed them, and a strip's share of
    /// the next block's.
    fn ahead(&self, at: usize) -> Ahead {
        let (blocks, order) = (self.job.blocks, self.squares.order);
        let steps = blocks.get(self.at).steps;
        let tiles = if self.first && self.at == 0 && self.strip == 0 {
            order.get(at + 1).map(|pair| blocks.get(0).tiles(pair))
        } else if blocks.len() > 1 {
            let all = blocks.get((self.at + 1) % blocks.len()).tiles(order.get(at).unwrap_or(order.first));
            let share = |strip: usize| all.start + all.len() * strip / self.strips;
            Some(share(self.strip)..share(self.strip + 1))
        } else {
            None
        };
        Ahead::new(tiles.map_or(&[], |tiles| &self.job.left[tiles]), steps)
    }
}

impl<T: stage::Stored> Turns for Round<'_, '_, T> {
    fn turn(&mut self, at: usize) -> Turn {
        let (sums, zero) = self.squares.place(self.now(at));
        let order = self.squares.order;
        Turn { pair: order.get(at).unwrap_or(order.first), sums, zero, ahead: self.ahead(at) }
    }

    fn part(&mut self, at: usize, part: usize) {
        let now = self.now(at);
        // SAFETY: the product checked the instructions; the task alone touches these rows and columns.
        unsafe { self.squares.part(now, part) };
    }
}

/// Fills a strip while nothing else goes on.
///
/// # Safety
/// As [`Filling::end`].
unsafe fn fill_alone<R: Run>(rows: bool, runs: Runs, strip: Strip) {
    // SAFETY: the caller's promise.
    unsafe { if rows { runs::Rows::<R>::new(runs, strip).end() } else { Cols::<R>::new(runs, strip).end() } }
}

/// Fills a strip beside the sums of another one.
///
/// # Safety
/// As [`sweep::sweep`].
unsafe fn sweep_filling<R: Run>(rows: bool, runs: Runs, strip: Strip, sweep: &Sweep, turns: &mut dyn Turns) {
    // SAFETY: the caller's promise.
    unsafe {
        if rows {
            sweep::sweep::<_, true, true>(runs::Rows::<R>::new(runs, strip), sweep, turns);
        } else {
            sweep::sweep::<_, true, true>(Cols::<R>::new(runs, strip), sweep, turns);
        }
    }
}

/// Two runs of `steps` tiles of rows, one after the other, from tile `first` on.
fn row_tiles(tiles: &[f32], first: usize, steps: usize) -> Pair {
    Pair { at: tiles[first * TILE..].as_ptr(), line: 16, second: steps * TILE, step: TILE }
}

/// Pairs of tiles of columns, from pair `first` on.
fn col_tiles(tiles: &[f32], first: usize) -> Pair {
    Pair { at: tiles[2 * first * TILE..].as_ptr(), line: 16, second: TILE, step: 2 * TILE }
}
