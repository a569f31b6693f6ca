//! The AMX instructions themselves. The tile registers are configured once for a task and released at its end.

use std::arch::asm;

/// Eight tiles of 16 rows of 64 bytes, in palette 1; see the Intel manual on `LDTILECFG`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// This thread's tile registers, configured for as long as the value lives.
pub(super) struct Tiles(std::marker::PhantomData<*mut ()>);

/// 16 or 32 rows of the left operand against a panel of 32 outputs.
pub(super) struct Sum {
    /// `steps` tiles of 16 rows by 32 of the sum.
    pub left: *const f32,
    /// How far on the tiles of the second 16 rows lie, in f32 elements.
    pub second: usize,
    /// `steps` pairs of tiles of 32 of the sum (two by two) by 16 outputs.
    pub panel: *const f32,
    pub steps: usize,
    /// What the sums begin with; null for zeros. `init_row` is 0 for a bias.
    pub init: *const f32,
    pub init_row: usize,
    pub to: *mut f32,
    pub to_row: usize,
}

impl Tiles {
    /// # Safety
    /// The processor has AMX, and the kernel has granted its use.
    pub unsafe fn configure() -> Self {
        // SAFETY: the caller's promise.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
        Self(std::marker::PhantomData)
    }

    /// `to[32][32] = init + left panel`, all in one loop over the sum.
    ///
    /// # Safety
    /// All pointers of `s` reach what its shape says, for 32 rows.
    pub unsafe fn sum_two(&self, s: &Sum) {
        // SAFETY: the caller's promise; the tiles are configured.
        unsafe {
            if s.init.is_null() {
                asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
            } else {
                asm!(
                    "tileloadd tmm0, [{top} + {row}]",
                    "tileloadd tmm1, [{top} + {row} + 64]",
                    "tileloadd tmm2, [{bottom} + {row}]",
                    "tileloadd tmm3, [{bottom} + {row} + 64]",
                    top = in(reg) s.init,
                    bottom = in(reg) s.init.wrapping_add(16 * s.init_row),
                    row = in(reg) s.init_row * 4,
                    options(nostack, readonly)
                );
            }
            asm!(
                "2:",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{c} + {row}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 1024",
                "add {c}, 1024",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 2b",
                a = inout(reg) s.left => _,
                c = inout(reg) s.left.wrapping_add(s.second) => _,
                b = inout(reg) s.panel => _,
                steps = inout(reg) s.steps => _,
                row = in(reg) 64_usize,
                options(nostack, readonly)
            );
            asm!(
                "tilestored [{top} + {row}], tmm0",
                "tilestored [{top} + {row} + 64], tmm1",
                "tilestored [{bottom} + {row}], tmm2",
                "tilestored [{bottom} + {row} + 64], tmm3",
                top = in(reg) s.to,
                bottom = in(reg) s.to.wrapping_add(16 * s.to_row),
                row = in(reg) s.to_row * 4,
                options(nostack)
            );
        }
    }

    /// `to[16][32] = init + left panel`: [`Tiles::sum_two`] without the second 16 rows, of the same bits.
    ///
    /// # Safety
    /// All pointers of `s` reach what its shape says, for 16 rows.
    pub unsafe fn sum_one(&self, s: &Sum) {
        // SAFETY: the caller's promise; the tiles are configured.
        unsafe {
            if s.init.is_null() {
                asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
            } else {
                asm!(
                    "tileloadd tmm0, [{top} + {row}]",
                    "tileloadd tmm1, [{top} + {row} + 64]",
                    top = in(reg) s.init,
                    row = in(reg) s.init_row * 4,
                    options(nostack, readonly)
                );
            }
            asm!(
                "2:",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {a}, 1024",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 2b",
                a = inout(reg) s.left => _,
                b = inout(reg) s.panel => _,
                steps = inout(reg) s.steps => _,
                row = in(reg) 64_usize,
                options(nostack, readonly)
            );
            asm!(
                "tilestored [{top} + {row}], tmm0",
                "tilestored [{top} + {row} + 64], tmm1",
                top = in(reg) s.to,
                row = in(reg) s.to_row * 4,
                options(nostack)
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: made only where AMX may be used.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
