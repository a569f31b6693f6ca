//! The 256 numbers that a byte can stand for: the dynamic map of Dettmers' 8-bit optimizers ([2110.02861](https://arxiv.org/abs/2110.02861)),
//! as bitsandbytes' `create_dynamic_map` lays it out. Seven decades from 1e-6 to 1, each of the larger ones with twice the numbers of the one below, the
//! middles of equal parts of the decade; and 0 and 1. Nothing here knows of blocks or optimizers.

/// The decades, by their upper ends; decade `i` has `2^i` numbers of each sign, or twice that where there is one sign.
const DECADES: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// What the codes stand for, ascending, and how a code is found: by the decade of a number and its place in there, without a branch.
pub struct DynamicMap {
    values: [f32; 256],
    /// The code of zero; positive numbers lie above it.
    zero: u32,
    /// Zero, the decades, and 1.
    stretches: [Stretch; 9],
}

/// Codes at equal distances: `scale x + base`, rounded, is how far the code of `x` lies from zero's.
#[derive(Clone, Copy)]
struct Stretch {
    /// Half-way between its lowest number and the one before.
    above: f32,
    scale: f32,
    base: f32,
    /// How far its last code lies from zero's.
    last: f32,
}

/// For numbers of both signs.
pub static SIGNED: DynamicMap = DynamicMap::new(true);
/// For numbers that are not negative.
pub static UNSIGNED: DynamicMap = DynamicMap::new(false);

impl DynamicMap {
    const fn new(signed: bool) -> Self {
        // In the signed map negative numbers mirror the positive ones, but for 1.
        let zero = if signed { 127 } else { 0 };
        let mut values = [0.0_f32; 256];
        let mut stretches = [Stretch { above: f32::NEG_INFINITY, scale: 0.0, base: 0.0, last: 0.0 }; 9];
        let (mut at, mut decade, mut below) = (zero + 1, 0, 0.0);
        while decade < DECADES.len() {
            let parts = 1 << (decade + if signed { 0 } else { 1 });
            let width = 0.9 * DECADES[decade] / parts as f64;
            let first = 0.1 * DECADES[decade] + 0.5 * width;
            stretches[decade + 1] = Stretch {
                above: ((below + first) / 2.0) as f32,
                scale: (1.0 / width) as f32,
                base: ((at - zero) as f64 - first / width) as f32,
                last: (at - zero + parts - 1) as f32,
            };
            let mut part = 0;
            while part < parts {
                below = first + part as f64 * width;
                values[at] = below as f32;
                if signed {
                    values[2 * zero - at] = -below as f32;
                }
                (at, part) = (at + 1, part + 1);
            }
            decade += 1;
        }
        values[255] = 1.0;
        let top = (255 - zero) as f32;
        stretches[8] = Stretch { above: ((below + 1.0) / 2.0) as f32, scale: 0.0, base: top, last: top };
        Self { values, zero: zero as u32, stretches }
    }

    /// What all codes stand for, ascending.
    pub const fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// What `code` stands for.
    #[inline(always)]
    pub const fn value(&self, code: u8) -> f32 {
        self.values[code as usize]
    }

    /// The code of the number nearest to `x`, which lies between -1 and 1 (between 0 and 1 where there is one sign); of either where `x` is within
    /// some units of its last place of half-way between two; zero's for NaN.
    #[inline(always)]
    pub fn code(&self, x: f32) -> u8 {
        // Added to a small number, it leaves that number's nearest integer in the lowest bits.
        const ROUND: f32 = 8_388_608.0;
        let size = x.abs();
        let (mut scale, mut base, mut last) = (0.0, 0.0, 0.0);
        for stretch in &self.stretches[1..] {
            let inside = size > stretch.above;
            scale = if inside { stretch.scale } else { scale };
            base = if inside { stretch.base } else { base };
            last = if inside { stretch.last } else { last };
        }
        let place = size * scale + base;
        let place = if place < last { place } else { last };
        let steps = (place + ROUND).to_bits() & 255;
        (if x < 0.0 {
            self.zero.wrapping_sub(if steps < self.zero { steps } else { self.zero })
        } else {
            self.zero + steps
        }) as u8
    }
}
