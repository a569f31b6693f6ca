//! The AMX instructions themselves: tiles of 16 rows of 64 bytes, loaded, multiplied as bf16 and summed in f32. The tile registers are
//! configured once for a task and released at its end.

use std::arch::asm;
use std::marker::PhantomData;

/// Elements of the sum in a tile.
pub(crate) const K_TILE: usize = 32;
/// Outputs of a square of two by two tiles, each way.
pub(crate) const SIDE: usize = 32;

/// Eight tiles of 16 rows of 64 bytes, in palette 1: see `LDTILECFG` in Intel's manual. Byte 0 is the palette, the 16-bit numbers
/// from byte 16 on are bytes of a row, the bytes from 48 on numbers of rows.
#[repr(C, align(64))]
struct Config([u8; 64]);

static CONFIG: Config = Config({
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    bytes
});

/// This thread's tile registers, configured for as long as the value lives; it stays on its thread.
pub(crate) struct Tiles(PhantomData<*mut ()>);

/// Two tiles of one operand, and how to get from one step of the sum to the next. Distances are in f32 elements (4 bytes).
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    /// The first row of the first tile.
    pub at: *const f32,
    /// From a tile's row to the next.
    pub line: usize,
    /// From the first tile to the second.
    pub second: usize,
    /// From a step's tiles to the next step's.
    pub step: usize,
    /// Whether the tiles go past the first-level cache, so that the other operand's stay there.
    pub past: bool,
}

impl Pair {
    /// The same tiles, past the first-level cache.
    pub fn past(self) -> Self {
        Self { past: true, ..self }
    }
}

/// A square of sums: where it begins and how far apart its rows are.
#[derive(Clone, Copy)]
pub(crate) struct Square {
    pub at: *mut f32,
    pub line: usize,
}

/// Loads a tile whose rows are `$row` bytes apart.
macro_rules! load {
    ($tile:literal, $from:expr, $row:expr) => {
        asm!(concat!("tileloadd ", $tile, ", [{} + {}]"), in(reg) $from, in(reg) $row, options(nostack, readonly))
    };
}

/// The same, past the first-level cache where `$past`.
macro_rules! load_past {
    ($past:ident, $tile:literal, $from:expr, $row:expr) => {
        if $past {
            asm!(concat!("tileloaddt1 ", $tile, ", [{} + {}]"), in(reg) $from, in(reg) $row, options(nostack, readonly))
        } else {
            load!($tile, $from, $row)
        }
    };
}

macro_rules! store {
    ($tile:literal, $to:expr, $row:expr) => {
        asm!(concat!("tilestored [{} + {}], ", $tile), in(reg) $to, in(reg) $row, options(nostack))
    };
}

macro_rules! add_products {
    ($sum:literal, $rows:literal, $cols:literal) => {
        asm!(concat!("tdpbf16ps ", $sum, ", ", $rows, ", ", $cols), options(nostack, nomem))
    };
}

/// What is asked for in small parts between the steps of a sum: the tile unit is busy for most of a step, and what comes from far caches comes meanwhile.
pub(crate) trait Beside {
    /// As much as belongs beside one step.
    fn part(&mut self);
}

/// Nothing.
impl Beside for () {
    #[inline(always)]
    fn part(&mut self) {}
}

impl Tiles {
    /// # Safety
    /// The processor has AMX, and the kernel has granted its use.
    #[inline]
    pub unsafe fn configure() -> Self {
        // SAFETY: the caller's promise.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
        Self(PhantomData)
    }

    /// Adds the products of two tiles `rows` (16 rows by 32 of the sum) and two tiles `cols` (16 pairs of the sum by 16 columns),
    /// `steps` of each, to a square of sums, or begins it at `zero`. Where only 16 rows or columns count, the second tile is
    /// left out: it changes no bit of the first.
    ///
    /// # Safety
    /// The processor has AVX-512. All tiles that the pairs, the steps and the two flags name can be read, and those of the square read and written.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn sum(
        &self,
        rows: Pair,
        cols: Pair,
        steps: usize,
        zero: bool,
        sums: Square,
        two_rows: bool,
        two_cols: bool,
        beside: &mut impl Beside,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match (rows.past, cols.past) {
                (false, false) => sized::<false, false>(rows, cols, steps, zero, sums, (two_rows, two_cols), beside),
                (true, false) => sized::<true, false>(rows, cols, steps, zero, sums, (two_rows, two_cols), beside),
                (false, true) => sized::<false, true>(rows, cols, steps, zero, sums, (two_rows, two_cols), beside),
                (true, true) => sized::<true, true>(rows, cols, steps, zero, sums, (two_rows, two_cols), beside),
            }
        }
    }
}

/// # Safety
/// As [`Tiles::sum`].
#[inline(always)]
unsafe fn sized<const PAST_ROWS: bool, const PAST_COLS: bool>(
    rows: Pair,
    cols: Pair,
    steps: usize,
    zero: bool,
    sums: Square,
    two: (bool, bool),
    beside: &mut impl Beside,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match two {
            (true, true) => sum::<true, true, PAST_ROWS, PAST_COLS>(rows, cols, steps, zero, sums, beside),
            (true, false) => sum::<true, false, PAST_ROWS, PAST_COLS>(rows, cols, steps, zero, sums, beside),
            (false, true) => sum::<false, true, PAST_ROWS, PAST_COLS>(rows, cols, steps, zero, sums, beside),
            (false, false) => sum::<false, false, PAST_ROWS, PAST_COLS>(rows, cols, steps, zero, sums, beside),
        }
    }
}

/// # Safety
/// As [`Tiles::sum`].
#[inline(always)]
unsafe fn sum<const ROWS: bool, const COLS: bool, const PAST_ROWS: bool, const PAST_COLS: bool>(
    rows: Pair,
    cols: Pair,
    steps: usize,
    zero: bool,
    sums: Square,
    beside: &mut impl Beside,
) {
    let (row_line, col_line, line) = (4 * rows.line, 4 * cols.line, 4 * sums.line);
    let (mut a, mut b) = (rows.at, cols.at);
    let down = 16 * sums.line;
    let places = [sums.at, sums.at.wrapping_add(16), sums.at.wrapping_add(down), sums.at.wrapping_add(down + 16)];
    // SAFETY: every tile that is read or written is one that the caller named.
    unsafe {
        if zero {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        } else {
            load!("tmm0", places[0], line);
            if COLS {
                load!("tmm1", places[1], line);
            }
            if ROWS {
                load!("tmm2", places[2], line);
            }
            if ROWS && COLS {
                load!("tmm3", places[3], line);
            }
        }
        for _ in 0..steps {
            // All four tiles are asked for before anything is multiplied: each load then waits for a product of the step before at most.
            load_past!(PAST_ROWS, "tmm4", a, row_line);
            load_past!(PAST_COLS, "tmm6", b, col_line);
            if COLS {
                load_past!(PAST_COLS, "tmm7", b.wrapping_add(cols.second), col_line);
            }
            if ROWS {
                load_past!(PAST_ROWS, "tmm5", a.wrapping_add(rows.second), row_line);
            }
            add_products!("tmm0", "tmm4", "tmm6");
            if COLS {
                add_products!("tmm1", "tmm4", "tmm7");
            }
            if ROWS {
                add_products!("tmm2", "tmm5", "tmm6");
            }
            if ROWS && COLS {
                add_products!("tmm3", "tmm5", "tmm7");
            }
            beside.part();
            a = a.wrapping_add(rows.step);
            b = b.wrapping_add(cols.step);
        }
        store!("tmm0", places[0], line);
        if COLS {
            store!("tmm1", places[1], line);
        }
        if ROWS {
            store!("tmm2", places[2], line);
        }
        if ROWS && COLS {
            store!("tmm3", places[3], line);
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: made only where AMX may be used.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
