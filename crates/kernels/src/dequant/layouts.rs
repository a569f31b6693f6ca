//! Every block layout taken apart into runs of sixteen small integers with a scale and a minimum. The layouts are described at
//! [`crate::blocks::dequantize`]; `d` is a scale, `m` a minimum, `q` an element's integer.

use super::arch::{Bytes, add, bits, bytes, fifth, half, left, or};
use super::{ANY, LANES, PACKED, Source, Strip, may_be, packed};
use crate::math::fold;
use crate::{BlockType, fetch};

/// Adds to any float without changing it.
const NONE: f32 = -0.0;

/// Sixteen floats in registers: what the arithmetic of all layouts ends in.
///
/// # Safety
/// All functions need the instruction set that the type stands for, and 16 elements at `from` and `x` and room for 16 at `to`, of any
/// alignment.
pub(super) trait Sixteen: Copy {
    /// A number, for each of the sixteen.
    type Number: Copy;
    unsafe fn number(x: f32) -> Self::Number;
    /// The half float at byte `at`, widened.
    unsafe fn half(block: &[u8], at: usize) -> Self::Number;
    /// The half floats at bytes `at` and `at + 2`.
    #[inline(always)]
    unsafe fn two_halves(block: &[u8], at: usize) -> [Self::Number; 2] {
        // SAFETY: the trait's contract.
        unsafe { [Self::half(block, at), Self::half(block, at + 2)] }
    }
    /// `d q + m` for 16 signed bytes `q`; the product is rounded before the sum. `m` is -0.0 where a layout has none: that
    /// changes no float.
    unsafe fn affine(q: Bytes, d: Self::Number, m: Self::Number) -> Self;
    /// `d (n + offset) + m` for the four bits `n` from `SHIFT` on of each byte.
    #[inline(always)]
    unsafe fn nibbles<const SHIFT: i32>(q: Bytes, offset: i8, d: Self::Number, m: Self::Number) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Self::affine(add(bits::<SHIFT>(q, 15), offset), d, m) }
    }
    /// `values[q]` for 16 integers below 16.
    unsafe fn lookup(q: Bytes, values: &[f32; 16]) -> Self;
    /// 16 floats.
    unsafe fn singles(from: *const u8) -> Self;
    /// 16 half floats, widened.
    unsafe fn halves(from: *const u8) -> Self;
    /// 16 bfloat16s, widened.
    unsafe fn brains(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `sum + self x`, rounded once.
    unsafe fn times(self, x: *const f32, sum: Self) -> Self;
    /// `sum + self self`, rounded once.
    unsafe fn squared(self, sum: Self) -> Self;
    /// [`fold`] of 64 lanes.
    #[inline(always)]
    unsafe fn fold(sums: [Self; LANES / 16]) -> f32 {
        let mut lanes = [0.0_f32; LANES];
        for (lanes, sums) in lanes.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
            // SAFETY: the trait's contract.
            unsafe { sums.store(lanes.as_mut_ptr()) };
        }
        fold(lanes)
    }
    /// Writes [integers](crate::matmul::int16::integer).
    unsafe fn integers(self, inverse: Self::Number, to: *mut i16);
    /// [`Sink::nibbles`], to integers.
    #[inline(always)]
    unsafe fn nibbles_to_integers<const A: i32, const B: i32>(
        q: [Bytes; 2],
        offset: i8,
        [d, m]: [Self::Number; 2],
        inverse: Self::Number,
        to: *mut i16,
    ) {
        // SAFETY: the trait's contract.
        unsafe {
            Self::nibbles::<A>(q[0], offset, d, m).integers(inverse, to);
            Self::nibbles::<B>(q[1], offset, d, m).integers(inverse, to.add(16));
        }
    }
    /// [`Sink::lookup`], to integers.
    #[inline(always)]
    unsafe fn lookup_to_integers(q: [Bytes; 2], values: &[f32; 16], inverse: Self::Number, to: *mut i16) {
        // SAFETY: the trait's contract.
        unsafe {
            Self::lookup(q[0], values).integers(inverse, to);
            Self::lookup(q[1], values).integers(inverse, to.add(16));
        }
    }
}

/// An element's number in two parts: a multiple of [`LANES`], and what comes on top. The compiler knows the second, and so the lane, and keeps sums of lanes in
/// registers.
#[derive(Clone, Copy)]
pub(super) struct At(pub(super) usize, pub(super) usize);

impl At {
    #[inline(always)]
    pub(super) fn number(self) -> usize {
        self.0 + self.1
    }
}

impl std::ops::Add<usize> for At {
    type Output = At;
    #[inline(always)]
    fn add(self, more: usize) -> At {
        At(self.0, self.1 + more)
    }
}

/// Where elements go.
///
/// # Safety
/// All functions need the instructions of [`Sink::Sixteen`], and there must be a place for elements `at..`, 16 of them, or 32 where two runs are given.
pub(super) trait Sink {
    type Sixteen: Sixteen;
    unsafe fn put(&mut self, at: At, x: Self::Sixteen);
    /// Two runs by [`Sixteen::nibbles`], the bits of the first from `A` on and those of the second from `B` on.
    #[inline(always)]
    unsafe fn nibbles<const A: i32, const B: i32>(&mut self, at: At, q: [Bytes; 2], offset: i8, by: [Number<Self>; 2]) {
        // SAFETY: the trait's contract.
        unsafe {
            self.put(at, Self::Sixteen::nibbles::<A>(q[0], offset, by[0], by[1]));
            self.put(at + 16, Self::Sixteen::nibbles::<B>(q[1], offset, by[0], by[1]));
        }
    }
    /// Two runs by [`Sixteen::lookup`].
    #[inline(always)]
    unsafe fn lookup(&mut self, at: At, q: [Bytes; 2], values: &[f32; 16]) {
        // SAFETY: the trait's contract.
        unsafe {
            self.put(at, Self::Sixteen::lookup(q[0], values));
            self.put(at + 16, Self::Sixteen::lookup(q[1], values));
        }
    }
    /// Called for each group of bytes before its elements are given.
    #[inline(always)]
    fn soon(&mut self, _bytes: &[u8]) {}
    /// 16 bfloat16s, which lie at `from`.
    #[inline(always)]
    unsafe fn brains(&mut self, at: At, from: *const u8) {
        // SAFETY: the trait's contract.
        unsafe { self.put(at, Self::Sixteen::brains(from)) }
    }
}

pub(super) type Number<S> = <<S as Sink>::Sixteen as Sixteen>::Number;

/// A [`Sink`] that writes elements one after another.
pub(super) trait Writer: Sink {
    /// What elements become: floats, the bits of bfloat16s, or integers.
    type Out: Copy + Default;
    /// What that depends on.
    type By: Copy;
    /// Element 0 goes to `to`.
    unsafe fn to(to: *mut Self::Out, by: Self::By) -> Self;
}

/// Writes floats.
pub(super) struct Floats<V>(*mut f32, std::marker::PhantomData<V>);

impl<V: Sixteen> Sink for Floats<V> {
    type Sixteen = V;
    #[inline(always)]
    unsafe fn put(&mut self, at: At, x: V) {
        // SAFETY: the trait's contract.
        unsafe { x.store(self.0.add(at.number())) }
    }
}

impl<V: Sixteen> Writer for Floats<V> {
    type Out = f32;
    type By = ();
    #[inline(always)]
    unsafe fn to(to: *mut f32, (): ()) -> Self {
        Self(to, std::marker::PhantomData)
    }
}

/// How far ahead of what is multiplied weights are asked for, in bytes.
const AHEAD: usize = 4096;

/// Multiplies with `x` and sums, lane by lane.
struct Dot<V> {
    x: *const f32,
    sums: [V; LANES / 16],
}

impl<V: Sixteen> Sink for Dot<V> {
    type Sixteen = V;
    #[inline(always)]
    unsafe fn put(&mut self, at: At, x: V) {
        let sum = &mut self.sums[at.1 / 16 % (LANES / 16)];
        // SAFETY: the trait's contract: `x` has as many elements.
        *sum = unsafe { x.times(self.x.add(at.number()), *sum) };
    }
    #[inline(always)]
    fn soon(&mut self, bytes: &[u8]) {
        fetch::behind(bytes, AHEAD);
    }
}

/// `out[i]`: the product of row `i` of `src` with `x`, as [`super::dots`] says.
///
/// # Safety
/// The processor has `V`'s instructions and those of `arch`; `src` has as many rows of `x.len()` elements as `out` has places.
#[inline(always)]
pub(super) unsafe fn dots<V: Sixteen>(src: Source, x: &[f32], out: &mut [f32]) {
    let whole = x.len() / LANES * LANES;
    for (row, out) in out.iter_mut().enumerate() {
        let at = row * x.len();
        let mut sums = [0.0_f32; LANES];
        // SAFETY: the caller's promise.
        unsafe {
            let zero = V::singles(sums.as_ptr().cast());
            let mut dot = Dot { x: x.as_ptr(), sums: [zero; LANES / 16] };
            elements::<_, ANY>(src.part(at, whole), whole, &mut dot);
            if whole == x.len() {
                *out = V::fold(dot.sums);
                continue;
            }
            for (sums, lanes) in sums.as_chunks_mut::<16>().0.iter_mut().zip(dot.sums) {
                lanes.store(sums.as_mut_ptr());
            }
            let mut last = [0.0; LANES];
            let last = &mut last[..x.len() - whole];
            write::<Floats<V>, ANY>(src.part(at + whole, last.len()), last);
            for ((sum, a), x) in sums.iter_mut().zip(last).zip(&x[whole..]) {
                *sum = a.mul_add(*x, *sum);
            }
        }
        *out = fold(sums);
    }
}

/// [`write`] of each row, `apart` from one to the next: once inside code for an instruction set for all of them.
///
/// # Safety
/// As [`write`], for each row.
#[inline(always)]
pub(super) unsafe fn write_rows<W: Writer<By = ()>>(src: Strip, dst: &mut [W::Out], apart: usize) {
    of_known_type!(src, src => for at in 0..src.rows {
        // SAFETY: the caller's promise.
        unsafe { write::<W, KNOWN>(src.row(at), &mut dst[at * apart..][..src.len]) };
    });
}

/// Dequantises whole blocks, or elements of a packed matrix, as many as `dst` has places.
///
/// # Safety
/// The processor has the writer's instructions and those of `arch`; `src` has as many elements.
#[inline(always)]
pub(super) unsafe fn write<W: Writer<By = ()>, const KNOWN: u8>(src: Source, dst: &mut [W::Out]) {
    // SAFETY: the caller's promise.
    unsafe { write_by::<W, KNOWN>(src, dst, ()) }
}

/// [`write`] with what elements depend on.
///
/// # Safety
/// As [`write`].
#[inline(always)]
pub(super) unsafe fn write_by<W: Writer, const KNOWN: u8>(src: Source, dst: &mut [W::Out], by: W::By) {
    let (whole, rest) = dst.split_at_mut(dst.len() / 32 * 32);
    // SAFETY: there is a place for each; the rest is the caller's promise.
    unsafe { elements::<W, KNOWN>(src.part(0, whole.len()), whole.len(), &mut W::to(whole.as_mut_ptr(), by)) };
    if rest.is_empty() {
        return;
    }
    // What is no whole number of 32 is stored element by element, or packed.
    let (mut padded, mut floats, mut out) = ([0; 128], [0.0_f32; 32], [W::Out::default(); 32]);
    let src = match src.part(whole.len(), rest.len()) {
        Source::Blocks(ty, src) => {
            padded[..src.len()].copy_from_slice(src);
            Source::Blocks(ty, &padded[..32 * ty.block_bytes()])
        }
        Source::Packed(packed, at) => {
            packed.read(at, &mut floats[..rest.len()]);
            Source::Blocks(BlockType::F32, bytemuck::cast_slice(&floats))
        }
    };
    // SAFETY: as above.
    unsafe { elements::<W, KNOWN>(src, 32, &mut W::to(out.as_mut_ptr(), by)) };
    rest.copy_from_slice(&out[..rest.len()]);
}

/// Gives all `len` elements, a multiple of 32, to `sink`: code for blocks of the type `KNOWN`, where it is not for [any](ANY).
///
/// # Safety
/// The processor has the sink's instructions and those of `arch`; `src` has as many elements.
#[inline(always)]
pub(super) unsafe fn elements<S: Sink, const KNOWN: u8>(src: Source, len: usize, sink: &mut S) {
    let (ty, src) = match src {
        Source::Blocks(ty, src) => (ty, src),
        Source::Packed(packed, at) => {
            if const { KNOWN == ANY || KNOWN == PACKED } {
                // SAFETY: the caller's promise.
                unsafe { packed::elements(packed, at, len, sink) };
            }
            return;
        }
    };
    // In groups of as many blocks as have all lanes of a product, so that the compiler knows each element's lane.
    macro_rules! blocks {
        ($ty:ident, $bytes:literal, $len:literal, $one:ident) => {
            if const { may_be(KNOWN, BlockType::$ty) } {
                const GROUP: usize = LANES.div_ceil($len);
                let (groups, last) = src.as_chunks::<$bytes>().0.as_chunks::<GROUP>();
                for (i, group) in groups.iter().enumerate() {
                    sink.soon(group.as_flattened());
                    for (j, block) in group.iter().enumerate() {
                        $one(block, At($len * GROUP * i, $len * j), sink);
                    }
                }
                for (j, block) in (0..GROUP).zip(last) {
                    $one(block, At($len * GROUP * groups.len(), $len * j), sink);
                }
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => {
                if const { may_be(KNOWN, BlockType::F32) || may_be(KNOWN, BlockType::F16) || may_be(KNOWN, BlockType::BF16) }
                {
                    floats(ty, src, sink);
                }
            }
            BlockType::Q8_0 => blocks!(Q8_0, 34, 32, q8_0),
            BlockType::Q4_0 => blocks!(Q4_0, 18, 32, q4_0),
            BlockType::Q4_1 => blocks!(Q4_1, 20, 32, q4_1),
            BlockType::Q5_0 => blocks!(Q5_0, 22, 32, q5_0),
            BlockType::Q5_1 => blocks!(Q5_1, 24, 32, q5_1),
            BlockType::Q4_K => blocks!(Q4_K, 144, 256, q4_k),
            BlockType::Q5_K => blocks!(Q5_K, 176, 256, q5_k),
            BlockType::Q6_K => blocks!(Q6_K, 210, 256, q6_k),
        }
    }
}

#[inline(always)]
unsafe fn floats<S: Sink>(ty: BlockType, src: &[u8], sink: &mut S) {
    macro_rules! runs {
        ($bytes:literal, ($sink:ident, $at:ident, $from:ident) => $put:expr) => {{
            let $sink = sink;
            let (groups, last) = src.as_chunks::<{ 16 * $bytes }>().0.as_chunks::<{ LANES / 16 }>();
            for (i, group) in groups.iter().enumerate() {
                $sink.soon(group.as_flattened());
                for (j, run) in group.iter().enumerate() {
                    let ($at, $from) = (At(LANES * i, 16 * j), run.as_ptr());
                    $put;
                }
            }
            for (j, run) in (0..LANES / 16).zip(last) {
                let ($at, $from) = (At(LANES * groups.len(), 16 * j), run.as_ptr());
                $put;
            }
        }};
    }
    // SAFETY: runs have 16 elements; the rest is the caller's promise.
    unsafe {
        match ty {
            BlockType::F16 => runs!(2, (sink, at, from) => sink.put(at, S::Sixteen::halves(from))),
            BlockType::BF16 => runs!(2, (sink, at, from) => sink.brains(at, from)),
            _ => runs!(4, (sink, at, from) => sink.put(at, S::Sixteen::singles(from))),
        }
    }
}

/// Elements `at..at + 16`: `d q + m`.
#[inline(always)]
unsafe fn put<S: Sink>(q: Bytes, [d, m]: [Number<S>; 2], sink: &mut S, at: At) {
    // SAFETY: the caller's promise.
    unsafe { sink.put(at, S::Sixteen::affine(q, d, m)) }
}

/// A scale from a half float, and no minimum.
#[inline(always)]
unsafe fn scale<S: Sink>(block: &[u8], at: usize) -> [Number<S>; 2] {
    // SAFETY: the caller's promise.
    unsafe { [S::Sixteen::half(block, at), S::Sixteen::number(NONE)] }
}

#[inline(always)]
unsafe fn q8_0<S: Sink>(block: &[u8; 34], at: At, sink: &mut S) {
    // SAFETY: the caller's promise, here and in the layouts below.
    unsafe {
        let by = scale::<S>(block, 0);
        put(bytes(block, 2), by, sink, at);
        put(bytes(block, 18), by, sink, at + 16);
    }
}

#[inline(always)]
unsafe fn q4_0<S: Sink>(block: &[u8; 18], at: At, sink: &mut S) {
    // SAFETY: as q8_0.
    unsafe { sink.nibbles::<0, 4>(at, [bytes(block, 2); 2], -8, scale::<S>(block, 0)) }
}

#[inline(always)]
unsafe fn q4_1<S: Sink>(block: &[u8; 20], at: At, sink: &mut S) {
    // SAFETY: as q8_0.
    unsafe { sink.nibbles::<0, 4>(at, [bytes(block, 4); 2], 0, S::Sixteen::two_halves(block, 0)) }
}

#[inline(always)]
unsafe fn q5_0<S: Sink>(block: &[u8; 22], at: At, sink: &mut S) {
    // SAFETY: as q8_0.
    unsafe {
        let (by, q) = (scale::<S>(block, 0), bytes(block, 6));
        put(add(or(bits::<0>(q, 15), fifth(block, 2)), -16), by, sink, at);
        put(add(or(bits::<4>(q, 15), fifth(block, 4)), -16), by, sink, at + 16);
    }
}

#[inline(always)]
unsafe fn q5_1<S: Sink>(block: &[u8; 24], at: At, sink: &mut S) {
    // SAFETY: as q8_0.
    unsafe {
        let (by, q) = (S::Sixteen::two_halves(block, 0), bytes(block, 8));
        put(or(bits::<0>(q, 15), fifth(block, 4)), by, sink, at);
        put(or(bits::<4>(q, 15), fifth(block, 6)), by, sink, at + 16);
    }
}

/// `d scale` and `-(m min)` of the 8 groups of Q4_K and Q5_K; adding a negative is subtracting.
#[inline(always)]
unsafe fn groups(block: &[u8]) -> [[f32; 2]; 8] {
    // SAFETY: as q8_0.
    let (d, m) = unsafe { (half(block, 0), half(block, 2)) };
    let packed = &block[4..16];
    let mut out = [[0.0; 2]; 8];
    for g in 0..4 {
        let (a, b, c) = (packed[g], packed[g + 4], packed[g + 8]);
        out[g] = [d * f32::from(a & 63), -(m * f32::from(b & 63))];
        let (scale, min) = ((c & 15) | ((a >> 2) & 0x30), (c >> 4) | ((b >> 2) & 0x30));
        out[g + 4] = [d * f32::from(scale), -(m * f32::from(min))];
    }
    out
}

/// Both numbers of a group.
#[inline(always)]
unsafe fn numbers<S: Sink>([d, m]: [f32; 2]) -> [Number<S>; 2] {
    // SAFETY: as q8_0.
    unsafe { [S::Sixteen::number(d), S::Sixteen::number(m)] }
}

#[inline(always)]
unsafe fn q4_k<S: Sink>(block: &[u8; 144], at: At, sink: &mut S) {
    // SAFETY: as q8_0.
    unsafe {
        let groups = groups(block);
        for c in 0..4 {
            let q = [bytes(block, 16 + 32 * c), bytes(block, 32 + 32 * c)];
            sink.nibbles::<0, 0>(at + 64 * c, q, 0, numbers::<S>(groups[2 * c]));
            sink.nibbles::<4, 4>(at + 64 * c + 32, q, 0, numbers::<S>(groups[2 * c + 1]));
        }
    }
}

#[inline(always)]
unsafe fn q5_k<S: Sink>(block: &[u8; 176], at: At, sink: &mut S) {
    // SAFETY: as q8_0.
    unsafe {
        let groups = groups(block);
        for part in 0..2 {
            let mut high = bytes(block, 16 + 16 * part);
            for c in 0..4 {
                let q = bytes(block, 48 + 32 * c + 16 * part);
                // Bits 2c and 2c + 1 of `high`, moved to bit 4.
                let first = left::<4>(bits::<0>(high, 1));
                let second = left::<3>(bits::<0>(high, 2));
                let at = at + 64 * c + 16 * part;
                put(or(bits::<0>(q, 15), first), numbers::<S>(groups[2 * c]), sink, at);
                put(or(bits::<4>(q, 15), second), numbers::<S>(groups[2 * c + 1]), sink, at + 32);
                high = bits::<2>(high, 63);
            }
        }
    }
}

#[inline(always)]
unsafe fn q6_k<S: Sink>(block: &[u8; 210], at: At, sink: &mut S) {
    // SAFETY: as q8_0.
    unsafe {
        let d = half(block, 208);
        let mut scales = [0.0; 16];
        for (scale, byte) in scales.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(*byte as i8);
        }
        for part in 0..4 {
            // Part `p` of a half: bytes 16 p.. of its 32 high bytes, whose four pairs of bits belong to runs of 32 elements.
            let (side, place) = (part / 2, part % 2 * 16);
            let high = bytes(block, 128 + 32 * side + place);
            let low = [bytes(block, 64 * side + place), bytes(block, 64 * side + 32 + place)];
            let q = [
                or(bits::<0>(low[0], 15), left::<4>(bits::<0>(high, 3))),
                or(bits::<0>(low[1], 15), left::<4>(bits::<2>(high, 3))),
                or(bits::<4>(low[0], 15), left::<4>(bits::<4>(high, 3))),
                or(bits::<4>(low[1], 15), left::<4>(bits::<6>(high, 3))),
            ];
            for (run, q) in q.into_iter().enumerate() {
                let by = numbers::<S>([scales[8 * side + 2 * run + place / 16], NONE]);
                put(add(q, -32), by, sink, at + 128 * side + 32 * run + place);
            }
        }
    }
}
