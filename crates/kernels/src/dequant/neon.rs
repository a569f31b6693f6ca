//! Sixteen elements at a time on NEON, to f32 or rounded to bf16, and the byte arithmetic that layouts are taken apart with.

use std::arch::aarch64::*;
use std::arch::asm;

use super::layouts::{self, At, Floats, Number, Sink, Sixteen, Writer};
use super::{ANY, Inverses, Source, Strip, integers};
use crate::matmul::int16::ROUND;

/// Sixteen small integers.
pub(super) type Bytes = uint8x16_t;

/// The half float at byte `at`, widened.
///
/// # Safety
/// None is asked for here, unlike on x86.
#[inline(always)]
pub(super) unsafe fn half(block: &[u8], at: usize) -> f32 {
    let bits = u16::from_le_bytes([block[at], block[at + 1]]);
    // SAFETY: NEON is part of every 64-bit Arm, here and in the functions below.
    unsafe { vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits)))) }
}

/// Bytes `at..at + 16`.
#[inline(always)]
pub(super) fn bytes(block: &[u8], at: usize) -> Bytes {
    let from: &[u8] = &block[at..at + 16];
    // SAFETY: `from` has 16 bytes.
    unsafe { vld1q_u8(from.as_ptr()) }
}

/// Bits `SHIFT..` of each byte, as far as `mask` goes.
#[inline(always)]
pub(super) fn bits<const SHIFT: i32>(x: Bytes, mask: i8) -> Bytes {
    // SAFETY: as `half`. A shift by a negative number goes right.
    unsafe { vandq_u8(vshlq_u8(x, vdupq_n_s8(-SHIFT as i8)), vdupq_n_u8(mask as u8)) }
}

/// Each byte moved up by `SHIFT` bits, which are free.
#[inline(always)]
pub(super) fn left<const SHIFT: i32>(x: Bytes) -> Bytes {
    // SAFETY: as `half`.
    unsafe { vshlq_n_u8::<SHIFT>(x) }
}

/// The bits of both.
#[inline(always)]
pub(super) fn or(a: Bytes, b: Bytes) -> Bytes {
    // SAFETY: as `half`.
    unsafe { vorrq_u8(a, b) }
}

/// `n` added to each byte.
#[inline(always)]
pub(super) fn add(x: Bytes, n: i8) -> Bytes {
    // SAFETY: as `half`.
    unsafe { vaddq_u8(x, vdupq_n_u8(n as u8)) }
}

/// The bytes of both, one of each in turn.
#[inline(always)]
pub(super) fn zip(a: Bytes, b: Bytes) -> [Bytes; 2] {
    // SAFETY: as `half`.
    unsafe { [vzip1q_u8(a, b), vzip2q_u8(a, b)] }
}

/// 16 for each bit set in bytes `at` and `at + 1`, 0 for others: the fifth bits of 16 elements.
#[inline(always)]
pub(super) fn fifth(block: &[u8], at: usize) -> Bytes {
    // SAFETY: as `half`.
    unsafe {
        let spread = vcombine_u8(vdup_n_u8(block[at]), vdup_n_u8(block[at + 1]));
        let each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        vandq_u8(vtstq_u8(spread, each), vdupq_n_u8(16))
    }
}

/// Four times four floats.
type Fours = [float32x4_t; 4];

impl Sixteen for Fours {
    type Number = float32x4_t;
    #[inline(always)]
    unsafe fn number(x: f32) -> float32x4_t {
        // SAFETY: as `half`, here and below; lengths are the trait's contract.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn half(block: &[u8], at: usize) -> float32x4_t {
        let bits = u16::from_le_bytes([block[at], block[at + 1]]);
        // SAFETY: as above.
        unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))) }
    }
    #[inline(always)]
    unsafe fn affine(q: Bytes, d: float32x4_t, m: float32x4_t) -> Fours {
        // SAFETY: as above.
        unsafe {
            let q = vreinterpretq_s8_u8(q);
            let (low, high) = (vmovl_s8(vget_low_s8(q)), vmovl_high_s8(q));
            let each = |q: int32x4_t| vaddq_f32(vmulq_f32(d, vcvtq_f32_s32(q)), m);
            [
                each(vmovl_s16(vget_low_s16(low))),
                each(vmovl_high_s16(low)),
                each(vmovl_s16(vget_low_s16(high))),
                each(vmovl_high_s16(high)),
            ]
        }
    }
    /// Byte by byte of the floats, which are taken apart and put together.
    #[inline(always)]
    unsafe fn lookup(q: Bytes, values: &[f32; 16]) -> Fours {
        // SAFETY: as above.
        unsafe {
            let uint8x16x4_t(a, b, c, d) = vld4q_u8(values.as_ptr().cast());
            let [a, b, c, d] = [a, b, c, d].map(|bytes| vqtbl1q_u8(bytes, q));
            let halves = [vzip1q_u8(a, b), vzip2q_u8(a, b), vzip1q_u8(c, d), vzip2q_u8(c, d)];
            let [ab, ab_high, cd, cd_high] = halves.map(|x| vreinterpretq_u16_u8(x));
            [vzip1q_u16(ab, cd), vzip2q_u16(ab, cd), vzip1q_u16(ab_high, cd_high), vzip2q_u16(ab_high, cd_high)]
                .map(|x| vreinterpretq_f32_u16(x))
        }
    }
    #[inline(always)]
    unsafe fn singles(from: *const u8) -> Fours {
        // SAFETY: as above; bytes may lie at any address.
        [0, 1, 2, 3].map(|i| unsafe { vreinterpretq_f32_u8(vld1q_u8(from.add(16 * i))) })
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> Fours {
        // SAFETY: as above.
        [0, 1, 2, 3].map(|i| unsafe { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from.add(8 * i)))) })
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8) -> Fours {
        // SAFETY: as above.
        [0, 1, 2, 3]
            .map(|i| unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(from.add(8 * i))))) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, x) in self.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { vst1q_f32(to.add(4 * i), x) };
        }
    }
    #[inline(always)]
    unsafe fn times(self, x: *const f32, sum: Fours) -> Fours {
        // SAFETY: as above.
        [0, 1, 2, 3].map(|i| unsafe { vfmaq_f32(sum[i], self[i], vld1q_f32(x.add(4 * i))) })
    }
    #[inline(always)]
    unsafe fn squared(self, sum: Fours) -> Fours {
        // SAFETY: as above.
        [0, 1, 2, 3].map(|i| unsafe { vfmaq_f32(sum[i], self[i], self[i]) })
    }
    #[inline(always)]
    unsafe fn integers(self, inverse: float32x4_t, to: *mut i16) {
        for (i, x) in self.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let sum = vfmaq_f32(vdupq_n_f32(ROUND), x, inverse);
                vst1_s16(to.add(4 * i), vmovn_s32(vreinterpretq_s32_f32(sum)));
            }
        }
    }
}

/// Rounds eight floats to bf16.
#[inline]
#[target_feature(enable = "neon,bf16")]
pub(crate) fn round(low: float32x4_t, high: float32x4_t) -> uint16x8_t {
    let mut bits: uint16x8_t;
    // SAFETY: the feature is enabled; nothing but registers is touched.
    unsafe {
        asm!(
            "bfcvtn {bits:v}.4h, {low:v}.4s",
            "bfcvtn2 {bits:v}.8h, {high:v}.4s",
            bits = out(vreg) bits, low = in(vreg) low, high = in(vreg) high,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    bits
}

/// Writes bfloat16s, by instructions for them.
struct Bf16(*mut u16);

impl Bf16 {
    /// `values[q]` for 32 integers, rounded to bf16: their low bytes, and their high ones.
    #[inline(always)]
    unsafe fn look_up(&mut self, at: At, q: [Bytes; 2], values: Fours) {
        // SAFETY: the trait's contract.
        unsafe {
            let first = vreinterpretq_u8_u16(round(values[0], values[1]));
            let second = vreinterpretq_u8_u16(round(values[2], values[3]));
            let (lows, highs) = (vuzp1q_u8(first, second), vuzp2q_u8(first, second));
            for (i, q) in q.into_iter().enumerate() {
                let (low, high) = (vqtbl1q_u8(lows, q), vqtbl1q_u8(highs, q));
                let to = self.0.add(at.number() + 16 * i);
                vst1q_u16(to, vreinterpretq_u16_u8(vzip1q_u8(low, high)));
                vst1q_u16(to.add(8), vreinterpretq_u16_u8(vzip2q_u8(low, high)));
            }
        }
    }
}

impl Sink for Bf16 {
    type Sixteen = Fours;
    #[inline(always)]
    unsafe fn put(&mut self, at: At, x: Fours) {
        // SAFETY: the trait's contract.
        unsafe {
            vst1q_u16(self.0.add(at.number()), round(x[0], x[1]));
            vst1q_u16(self.0.add(at.number() + 8), round(x[2], x[3]));
        }
    }
    /// By a table of the 16 values there can be.
    #[inline(always)]
    unsafe fn nibbles<const A: i32, const B: i32>(&mut self, at: At, q: [Bytes; 2], offset: i8, by: [Number<Self>; 2]) {
        const ALL: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        // SAFETY: the trait's contract.
        unsafe {
            let values = Fours::affine(add(vld1q_u8(ALL.as_ptr()), offset), by[0], by[1]);
            self.look_up(at, [bits::<A>(q[0], 15), bits::<B>(q[1], 15)], values);
        }
    }
    #[inline(always)]
    unsafe fn lookup(&mut self, at: At, q: [Bytes; 2], values: &[f32; 16]) {
        // SAFETY: the trait's contract.
        unsafe { self.look_up(at, q, Fours::singles(values.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn brains(&mut self, at: At, from: *const u8) {
        // SAFETY: the trait's contract.
        unsafe { std::ptr::copy_nonoverlapping(from, self.0.add(at.number()).cast(), 32) }
    }
}

impl Writer for Bf16 {
    type Out = u16;
    type By = ();
    #[inline(always)]
    unsafe fn to(to: *mut u16, (): ()) -> Self {
        Self(to)
    }
}

pub(super) fn f32(src: Strip, dst: &mut [f32], apart: usize) {
    // SAFETY: NEON is part of every 64-bit Arm; the lengths agree by the caller's check.
    unsafe { layouts::write_rows::<Floats<Fours>>(src, dst, apart) }
}

pub(super) fn dots(src: Source, x: &[f32], out: &mut [f32]) {
    // SAFETY: as `f32`.
    unsafe { layouts::dots::<Fours>(src, x, out) }
}

pub(super) fn squares(src: Strip, to: &mut [f32]) {
    // SAFETY: as `f32`.
    unsafe { integers::squares::<Fours>(src, to) }
}

pub(super) fn add_squares(src: Strip, to: &mut [f32]) {
    // SAFETY: as `f32`.
    unsafe { integers::add_squares::<Fours>(src, to) }
}

pub(super) fn integers(src: Strip, inverses: Inverses, to: &mut [i16], apart: usize) {
    // SAFETY: as `f32`.
    unsafe { integers::integers::<Fours>(src, inverses, to, apart) }
}

/// # Safety
/// The processor has BF16.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn bf16(src: Source, dst: &mut [u16]) {
    // SAFETY: the feature is enabled here; the lengths agree by the caller's check.
    unsafe { layouts::write::<Bf16, ANY>(src, dst) }
}
