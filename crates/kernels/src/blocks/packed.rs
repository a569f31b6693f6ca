//! Matrices as bitsandbytes and MLX pack them: small integers in one place, and what turns runs of them into floats in others. This is their exact
//! meaning, the scalar reference of what `dequant` does faster. Whether the parts fit together is for the reader of a file to say; here an
//! element beyond them panics.
//!
//! ```text
//! MLX:          b bits each, the first element in the low ones; runs along a row;                  y = scale q + bias
//! bitsandbytes: 4 bits each, the first of two in the high ones; runs over all rows together;       y = table[q] scale, rounded
//!   doubly quantised: scale = outer_table[u] outer_scale + offset, with a byte u for each run and a scale for runs of these
//! ```
//!
//! A row of MLX's is whole groups, so that both number their runs by element, rows one after the other.

use half::{bf16, f16};

use super::BlockType;

/// A packed matrix. `S` is where bytes are: a slice of them, or a place in a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packed<S> {
    /// The integers.
    pub integers: S,
    /// Bits of an integer: 2, 4 or 8.
    pub bits: usize,
    /// Elements that share a scale.
    pub run: usize,
    /// What the integers stand for.
    pub meaning: Meaning<S>,
}

/// What integers stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meaning<S> {
    /// `scale q + bias`.
    Affine {
        /// A scale for each run.
        scales: Floats<S>,
        /// A bias for each run.
        biases: Floats<S>,
    },
    /// `table[q] scale`, of 4 bits.
    Table {
        /// Sixteen numbers.
        table: Floats<S>,
        /// A scale for each run.
        scales: Scales<S>,
        /// What products are rounded to: the type that the other runtime computes with.
        rounded: BlockType,
    },
}

/// The scales of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scales<S> {
    /// As floats.
    Plain(Floats<S>),
    /// Quantised themselves, in runs.
    Nested {
        /// A byte for each scale.
        integers: S,
        /// 256 numbers.
        table: Floats<S>,
        /// Scales that share an outer scale.
        run: usize,
        /// The outer scales.
        scales: Floats<S>,
        /// Added to every scale.
        offset: f32,
    },
}

/// Floats as a file has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floats<S> {
    /// F32, F16 or BF16.
    pub ty: BlockType,
    /// Their bytes.
    pub data: S,
}

impl<S> Packed<S> {
    /// The same with its bytes elsewhere.
    pub fn map<'s, T>(&'s self, to: impl Fn(&'s S) -> T) -> Packed<T> {
        let floats = |floats: &'s Floats<S>| Floats { ty: floats.ty, data: to(&floats.data) };
        let meaning = match &self.meaning {
            Meaning::Affine { scales, biases } => Meaning::Affine { scales: floats(scales), biases: floats(biases) },
            Meaning::Table { table, scales, rounded } => Meaning::Table {
                table: floats(table),
                scales: match scales {
                    Scales::Plain(scales) => Scales::Plain(floats(scales)),
                    Scales::Nested { integers, table, run, scales, offset } => Scales::Nested {
                        integers: to(integers),
                        table: floats(table),
                        run: *run,
                        scales: floats(scales),
                        offset: *offset,
                    },
                },
                rounded: *rounded,
            },
        };
        Packed { integers: to(&self.integers), bits: self.bits, run: self.run, meaning }
    }

    /// Calls `see` with every place that grows with the matrix; tables don't.
    pub fn each_part<'s>(&'s self, mut see: impl FnMut(&'s S)) {
        see(&self.integers);
        match &self.meaning {
            Meaning::Affine { scales, biases } => [scales, biases].iter().for_each(|floats| see(&floats.data)),
            Meaning::Table { scales: Scales::Plain(scales), .. } => see(&scales.data),
            Meaning::Table { scales: Scales::Nested { integers, scales, .. }, .. } => {
                see(integers);
                see(&scales.data);
            }
        }
    }
}

impl Packed<&[u8]> {
    /// The bytes of the integers of elements `at..at + len`.
    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.integers[at * self.bits / 8..((at + len) * self.bits).div_ceil(8)]
    }

    /// Reads the elements from `at` on.
    ///
    /// # Panics
    /// When there are fewer than `to` has room for.
    pub fn read(&self, at: usize, to: &mut [f32]) {
        for (at, to) in (at..).zip(to) {
            let (byte, shift) = (self.integers[at * self.bits / 8], at * self.bits % 8);
            *to = match &self.meaning {
                Meaning::Affine { scales, biases } => {
                    let q = byte >> shift & (0xff >> (8 - self.bits));
                    scales.at(at / self.run) * f32::from(q) + biases.at(at / self.run)
                }
                Meaning::Table { table, scales, rounded } => {
                    let q = if shift == 0 { byte >> 4 } else { byte & 15 };
                    rounded_to(table.at(usize::from(q)) * scales.at(at / self.run), *rounded)
                }
            };
        }
    }
}

impl Floats<&[u8]> {
    /// The float number `at`.
    #[inline(always)]
    pub(crate) fn at(&self, at: usize) -> f32 {
        match self.ty {
            BlockType::F16 => f16::from_le_bytes(self.data.as_chunks().0[at]).to_f32(),
            BlockType::BF16 => bf16::from_le_bytes(self.data.as_chunks().0[at]).to_f32(),
            _ => f32::from_le_bytes(self.data.as_chunks().0[at]),
        }
    }
}

impl Scales<&[u8]> {
    /// The scale of run `at`.
    #[inline(always)]
    pub(crate) fn at(&self, at: usize) -> f32 {
        match self {
            Scales::Plain(scales) => scales.at(at),
            Scales::Nested { integers, table, run, scales, offset } => {
                table.at(usize::from(integers[at])) * scales.at(at / run) + offset
            }
        }
    }
}

/// `x` as the other runtime sees it.
#[inline(always)]
pub(crate) fn rounded_to(x: f32, ty: BlockType) -> f32 {
    match ty {
        BlockType::F16 => f16::from_f32(x).to_f32(),
        BlockType::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}
