//! Elements that become [16-bit integers](crate::matmul::int16): their sums of squares, for the scales, and then the integers. They go from blocks to
//! registers both times, and never lie anywhere as floats.

use super::arch::Bytes;
use super::layouts::{At, Floats, Number, Sink, Sixteen, Writer, elements, write, write_by};
use super::{Inverses, LANES, RUN, Strip};

/// Sums squares, lane by lane.
struct Squares<V>([V; LANES / 16]);

impl<V: Sixteen> Sink for Squares<V> {
    type Sixteen = V;
    #[inline(always)]
    unsafe fn put(&mut self, at: At, x: V) {
        let sum = &mut self.0[at.1 / 16 % (LANES / 16)];
        // SAFETY: the trait's contract.
        *sum = unsafe { x.squared(*sum) };
    }
}

/// Adds the square of each element to its place.
struct Columns<V>(*mut f32, std::marker::PhantomData<V>);

impl<V: Sixteen> Sink for Columns<V> {
    type Sixteen = V;
    #[inline(always)]
    unsafe fn put(&mut self, at: At, x: V) {
        // SAFETY: the trait's contract.
        unsafe {
            let sum = self.0.add(at.number());
            x.squared(V::singles(sum.cast())).store(sum);
        }
    }
}

/// Writes integers.
struct Integers<V: Sixteen>(*mut i16, V::Number);

impl<V: Sixteen> Sink for Integers<V> {
    type Sixteen = V;
    #[inline(always)]
    unsafe fn put(&mut self, at: At, x: V) {
        // SAFETY: the trait's contract.
        unsafe { x.integers(self.1, self.0.add(at.number())) }
    }
    #[inline(always)]
    unsafe fn nibbles<const A: i32, const B: i32>(&mut self, at: At, q: [Bytes; 2], offset: i8, by: [Number<Self>; 2]) {
        // SAFETY: the trait's contract.
        unsafe { V::nibbles_to_integers::<A, B>(q, offset, by, self.1, self.0.add(at.number())) }
    }
    #[inline(always)]
    unsafe fn lookup(&mut self, at: At, q: [Bytes; 2], values: &[f32; 16]) {
        // SAFETY: the trait's contract.
        unsafe { V::lookup_to_integers(q, values, self.1, self.0.add(at.number())) }
    }
}

impl<V: Sixteen> Writer for Integers<V> {
    type Out = i16;
    /// What elements are multiplied with.
    type By = f32;
    #[inline(always)]
    unsafe fn to(to: *mut i16, inverse: f32) -> Self {
        // SAFETY: the trait's contract.
        Self(to, unsafe { V::number(inverse) })
    }
}

/// Writes integers, each run of 32 by what it is multiplied with.
struct IntegersByRun<V>(*mut i16, *const f32, std::marker::PhantomData<V>);

impl<V: Sixteen> IntegersByRun<V> {
    /// Where element `at` goes, and what it is multiplied with.
    #[inline(always)]
    unsafe fn of(&self, at: At) -> (*mut i16, V::Number) {
        // SAFETY: the trait's contract.
        unsafe { (self.0.add(at.number()), V::number(*self.1.add(at.number() / RUN))) }
    }
}

impl<V: Sixteen> Sink for IntegersByRun<V> {
    type Sixteen = V;
    #[inline(always)]
    unsafe fn put(&mut self, at: At, x: V) {
        // SAFETY: the trait's contract.
        unsafe {
            let (to, inverse) = self.of(at);
            x.integers(inverse, to);
        }
    }
    #[inline(always)]
    unsafe fn nibbles<const A: i32, const B: i32>(&mut self, at: At, q: [Bytes; 2], offset: i8, by: [Number<Self>; 2]) {
        // SAFETY: the trait's contract.
        unsafe {
            let (to, inverse) = self.of(at);
            V::nibbles_to_integers::<A, B>(q, offset, by, inverse, to);
        }
    }
}

impl<V: Sixteen> Writer for IntegersByRun<V> {
    type Out = i16;
    /// What elements are multiplied with, run by run.
    type By = *const f32;
    #[inline(always)]
    unsafe fn to(to: *mut i16, inverses: *const f32) -> Self {
        Self(to, inverses, std::marker::PhantomData)
    }
}

/// The sum of squares of each row.
///
/// # Safety
/// The processor has `V`'s instructions and those of `arch`; `src` has as many rows as `to` has places.
#[inline(always)]
pub(super) unsafe fn squares<V: Sixteen>(src: Strip, to: &mut [f32]) {
    let whole = src.len / LANES * LANES;
    of_known_type!(src, src => for (at, to) in to.iter_mut().enumerate() {
        let row = src.row(at);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = Squares([V::singles([0.0_f32; 16].as_ptr().cast()); LANES / 16]);
            elements::<_, KNOWN>(row.part(0, whole), whole, &mut sums);
            if whole < src.len {
                let mut last = [0.0_f32; LANES];
                write::<Floats<V>, KNOWN>(row.part(whole, src.len - whole), &mut last[..src.len - whole]);
                for (sum, x) in sums.0.iter_mut().zip(last.as_chunks::<16>().0) {
                    *sum = V::singles(x.as_ptr().cast()).squared(*sum);
                }
            }
            *to = V::fold(sums.0);
        }
    });
}

/// Adds the squares of each column to its place.
///
/// # Safety
/// As [`squares`], and `to` has as many places as a row has elements.
#[inline(always)]
pub(super) unsafe fn add_squares<V: Sixteen>(src: Strip, to: &mut [f32]) {
    let (whole, rest) = to.split_at_mut(src.len / 32 * 32);
    of_known_type!(src, src => for at in 0..src.rows {
        let row = src.row(at);
        // SAFETY: the caller's promise.
        unsafe {
            elements::<_, KNOWN>(
                row.part(0, whole.len()),
                whole.len(),
                &mut Columns(whole.as_mut_ptr(), std::marker::PhantomData::<V>),
            );
            if !rest.is_empty() {
                let mut last = [0.0_f32; 32];
                let last = &mut last[..rest.len()];
                write::<Floats<V>, KNOWN>(row.part(whole.len(), last.len()), last);
                rest.iter_mut().zip(last).for_each(|(sum, x)| *sum = x.mul_add(*x, *sum));
            }
        }
    });
}

/// The integers of each row, `apart` from one row to the next.
///
/// # Safety
/// As [`squares`]; there are as many inverses as there are rows, or runs of 32 columns, and room for all integers.
#[inline(always)]
pub(super) unsafe fn integers<V: Sixteen>(src: Strip, inverses: Inverses, to: &mut [i16], apart: usize) {
    of_known_type!(src, src => match inverses {
        Inverses::OfRows(inverses) => {
            for (at, &inverse) in inverses.iter().enumerate().take(src.rows) {
                // SAFETY: the caller's promise.
                unsafe { write_by::<Integers<V>, KNOWN>(src.row(at), &mut to[at * apart..][..src.len], inverse) };
            }
        }
        Inverses::OfRuns(inverses) => {
            for at in 0..src.rows {
                let to = &mut to[at * apart..][..src.len];
                // SAFETY: the caller's promise.
                unsafe { write_by::<IntegersByRun<V>, KNOWN>(src.row(at), to, inverses.as_ptr()) };
            }
        }
    });
}
