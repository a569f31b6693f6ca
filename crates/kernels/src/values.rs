//! Values of a step as they lie in memory: floats, or bf16 where products alone read them, which would round them anyway.

use half::bf16;

/// What a value's elements are stored as.
pub trait Element: Copy + Send + Sync {
    /// As a float.
    fn get(self) -> f32;
    /// The nearest one to `x`, ties to even; NaN stays NaN.
    fn of(x: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }

    #[inline(always)]
    fn of(x: f32) -> Self {
        x
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn get(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn of(x: f32) -> Self {
        bf16::from_bits((round_bf16(x).to_bits() >> 16) as u16)
    }
}

/// Values to read.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// Floats.
    F32(&'a [f32]),
    /// Halves of floats.
    Bf16(&'a [bf16]),
}

/// Values to write.
pub enum ValuesMut<'a> {
    /// Floats.
    F32(&'a mut [f32]),
    /// Halves of floats.
    Bf16(&'a mut [bf16]),
}

impl<'a> Values<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(x) => x.len(),
            Values::Bf16(x) => x.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those from `first` on.
    pub(crate) fn from(self, first: usize) -> Self {
        match self {
            Values::F32(x) => Values::F32(&x[first..]),
            Values::Bf16(x) => Values::Bf16(&x[first..]),
        }
    }

    /// The one at `at`.
    pub(crate) fn at(&self, at: usize) -> f32 {
        match self {
            Values::F32(x) => x[at],
            Values::Bf16(x) => x[at].get(),
        }
    }

    /// Floats, where nothing else is expected.
    ///
    /// # Panics
    /// When they are no floats.
    pub fn floats(self) -> &'a [f32] {
        match self {
            Values::F32(x) => x,
            Values::Bf16(_) => panic!("values in bf16 where floats are read"),
        }
    }
}

impl ValuesMut<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            ValuesMut::F32(x) => x.len(),
            ValuesMut::Bf16(x) => x.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Floats, where nothing else is expected.
    ///
    /// # Panics
    /// When they are no floats.
    pub fn floats(&mut self) -> &mut [f32] {
        match self {
            ValuesMut::F32(x) => x,
            ValuesMut::Bf16(_) => panic!("values in bf16 where floats are written"),
        }
    }
}

/// `x` rounded to bfloat16, to nearest, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    f32::from_bits(if x.is_nan() { (bits | 0x0040_0000) & 0xffff_0000 } else { rounded })
}
