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

/// The same, past the first-level cache.
macro_rules! load_past {
    ($tile:literal, $from:expr, $row:expr) => {
        asm!(concat!("tileloaddt1 ", $tile, ", [{} + {}]"), in(reg) $from, in(reg) $row, options(nostack, readonly))
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

/// A step of a square's sums; the tiles are loaded by `$load`.
macro_rules! step {
    ($load:ident, $rows:expr, $cols:expr, $a:expr, $b:expr, $row_line:expr, $col_line:expr) => {
        $load!("tmm4", $a, $row_line);
        $load!("tmm6", $b, $col_line);
        add_products!("tmm0", "tmm4", "tmm6");
        if COLS {
            $load!("tmm7", $b.wrapping_add($cols.second), $col_line);
            add_products!("tmm1", "tmm4", "tmm7");
        }
        if ROWS {
            $load!("tmm5", $a.wrapping_add($rows.second), $row_line);
            add_products!("tmm2", "tmm5", "tmm6");
        }
        if ROWS && COLS {
            add_products!("tmm3", "tmm5", "tmm7");
        }
    };
}

/// What is done beside the steps of a sum: the tile unit is busy with a step for 64 cycles, of which everything else needs a few.
pub(crate) trait Beside {
    /// What belongs beside one step.
    ///
    /// # Safety
    /// The processor has AVX-512 as [`Tiles::sum_beside`] names it.
    unsafe fn step(&mut self);
}

/// How many equal parts a sum comes in, between which something longer is done.
pub(crate) const PARTS: usize = 4;

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
    /// All tiles that the pairs, the steps and the two flags name can be read, and those of the square read and written.
    #[inline]
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
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match (two_rows, two_cols) {
                (true, true) => sum::<true, true>(rows, cols, steps, zero, sums),
                (true, false) => sum::<true, false>(rows, cols, steps, zero, sums),
                (false, true) => sum::<false, true>(rows, cols, steps, zero, sums),
                (false, false) => sum::<false, false>(rows, cols, steps, zero, sums),
            }
        }
    }

    /// The same of all four tiles (of two with `ROWS` or `COLS` alone), which come from the second-level cache and do not displace what is in the first, with
    /// `beside` after each step and `between` before each of [`PARTS`] parts.
    ///
    /// # Safety
    /// As [`Tiles::sum`], and the processor has AVX-512.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn sum_beside<const ROWS: bool, const COLS: bool>(
        &self,
        rows: Pair,
        cols: Pair,
        steps: usize,
        zero: bool,
        sums: Square,
        beside: &mut impl Beside,
        between: &mut dyn FnMut(usize),
    ) {
        let (row_line, col_line) = (4 * rows.line, 4 * cols.line);
        let (mut a, mut b) = (rows.at, cols.at);
        // SAFETY: every tile that is read or written is one that the caller named.
        unsafe {
            begin::<ROWS, COLS>(zero, sums);
            for part in 0..PARTS {
                between(part);
                for _ in steps * part / PARTS..steps * (part + 1) / PARTS {
                    step!(load_past, rows, cols, a, b, row_line, col_line);
                    beside.step();
                    a = a.wrapping_add(rows.step);
                    b = b.wrapping_add(cols.step);
                }
            }
            end::<ROWS, COLS>(sums);
        }
    }
}

/// # Safety
/// As [`Tiles::sum`].
#[inline(always)]
unsafe fn sum<const ROWS: bool, const COLS: bool>(rows: Pair, cols: Pair, steps: usize, zero: bool, sums: Square) {
    let (row_line, col_line) = (4 * rows.line, 4 * cols.line);
    let (mut a, mut b) = (rows.at, cols.at);
    // SAFETY: every tile that is read or written is one that the caller named.
    unsafe {
        begin::<ROWS, COLS>(zero, sums);
        for _ in 0..steps {
            step!(load, rows, cols, a, b, row_line, col_line);
            a = a.wrapping_add(rows.step);
            b = b.wrapping_add(cols.step);
        }
        end::<ROWS, COLS>(sums);
    }
}

impl Square {
    /// Where its four tiles begin, and the bytes from a row to the next.
    #[inline(always)]
    fn places(self) -> ([*mut f32; 4], usize) {
        let down = 16 * self.line;
        let places = [self.at, self.at.wrapping_add(16), self.at.wrapping_add(down), self.at.wrapping_add(down + 16)];
        (places, 4 * self.line)
    }
}

/// # Safety
/// As [`Tiles::sum`].
#[inline(always)]
unsafe fn begin<const ROWS: bool, const COLS: bool>(zero: bool, sums: Square) {
    let (places, line) = sums.places();
    // SAFETY: the caller's promise.
    unsafe {
        if zero {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
            return;
        }
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
}

/// # Safety
/// As [`Tiles::sum`].
#[inline(always)]
unsafe fn end<const ROWS: bool, const COLS: bool>(sums: Square) {
    let (places, line) = sums.places();
    // SAFETY: the caller's promise.
    unsafe {
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
