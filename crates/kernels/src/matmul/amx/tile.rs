//! The AMX instructions themselves. The tile registers are configured once for a task and released at its end.

use std::arch::asm;
use std::marker::PhantomData;

use super::{SIDE, TILE};

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
pub(super) struct Tiles(PhantomData<*mut ()>);

/// Loads a tile whose rows are `$row` bytes apart.
macro_rules! load {
    ($tile:literal, $from:expr, $row:expr) => {
        asm!(concat!("tileloadd ", $tile, ", [{} + {}]"), in(reg) $from, in(reg) $row, options(nostack, readonly))
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

impl Tiles {
    /// # Safety
    /// The processor has AMX, and the kernel has granted its use.
    pub unsafe fn configure() -> Self {
        // SAFETY: the caller's promise.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
        Self(PhantomData)
    }

    /// Adds the products of two tiles `rows` and two tiles `cols`, `steps` of each, to a square of sums, or begins it at `zero`.
    /// Where only 16 rows or columns count, the second tile may be left out: it changes no bit of the first.
    #[allow(clippy::too_many_arguments)]
    pub fn sum(
        &self,
        rows: &[f32],
        cols: &[f32],
        steps: usize,
        zero: bool,
        sums: &mut [f32],
        two_rows: bool,
        two_cols: bool,
    ) {
        assert!(rows.len() == 2 * TILE * steps && cols.len() == 2 * TILE * steps && sums.len() == SIDE * SIDE);
        let (rows, cols, sums) = (rows.as_ptr(), cols.as_ptr(), sums.as_mut_ptr());
        // SAFETY: the lengths were checked.
        unsafe {
            match (two_rows, two_cols) {
                (true, true) => sum::<true, true>(rows, cols, steps, zero, sums),
                (true, false) => sum::<true, false>(rows, cols, steps, zero, sums),
                (false, true) => sum::<false, true>(rows, cols, steps, zero, sums),
                (false, false) => sum::<false, false>(rows, cols, steps, zero, sums),
            }
        }
    }
}

/// # Safety
/// As [`Tiles::sum`], whose checks were made.
#[inline(always)]
unsafe fn sum<const ROWS: bool, const COLS: bool>(
    mut rows: *const f32,
    mut cols: *const f32,
    steps: usize,
    zero: bool,
    sums: *mut f32,
) {
    let (line, row) = (64_usize, 4 * SIDE);
    let places = [sums, sums.wrapping_add(16), sums.wrapping_add(16 * SIDE), sums.wrapping_add(16 * SIDE + 16)];
    // SAFETY: every tile that is read or written lies inside the operands' checked lengths.
    unsafe {
        if zero {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        } else {
            load!("tmm0", places[0], row);
            load!("tmm1", places[1], row);
            load!("tmm2", places[2], row);
            load!("tmm3", places[3], row);
        }
        for _ in 0..steps {
            load!("tmm4", rows, line);
            load!("tmm6", cols, line);
            add_products!("tmm0", "tmm4", "tmm6");
            if COLS {
                load!("tmm7", cols.wrapping_add(TILE), line);
                add_products!("tmm1", "tmm4", "tmm7");
            }
            if ROWS {
                load!("tmm5", rows.wrapping_add(steps * TILE), line);
                add_products!("tmm2", "tmm5", "tmm6");
            }
            if ROWS && COLS {
                add_products!("tmm3", "tmm5", "tmm7");
            }
            rows = rows.wrapping_add(TILE);
            cols = cols.wrapping_add(2 * TILE);
        }
        store!("tmm0", places[0], row);
        store!("tmm1", places[1], row);
        store!("tmm2", places[2], row);
        store!("tmm3", places[3], row);
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: made only where AMX may be used.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
