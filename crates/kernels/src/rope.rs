//! Rotary positions, in place. The derivative is the rotation by the opposite angle.

#[cfg(target_arch = "x86_64")]
mod halves;

use half::bf16;

use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Element, Isa, Pool, ValuesMut, fetch};

/// How a rotation pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `(i, i + d/2)`: Hugging Face's layout.
    Halves,
    /// `(2i, 2i + 1)`: the layout of GGUF's permuted llama weights.
    Interleaved,
}

/// The rotation of a head.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    /// Elements of a head.
    pub d: usize,
    /// For each position, `d/2` cosines and then `d/2` sines.
    pub table: &'a [f32],
    /// How elements pair up.
    pub pairs: Pairs,
    /// Whether it goes backwards.
    pub inverse: bool,
}

/// Rotates each head in every row of `x`, of `width` elements, by its row's position.
///
/// # Panics
/// When the lengths do not go together.
pub fn rotate(isa: Isa, pool: &Pool, x: ValuesMut, width: usize, rotation: Rotation, positions: &[u32]) {
    let d = rotation.d;
    assert!(
        x.len() == positions.len() * width && width.is_multiple_of(d) && d.is_multiple_of(2),
        "{} {width} {d}",
        x.len()
    );
    match x {
        ValuesMut::F32(x) => pieces(pool, x, width, positions, |x, at| rotate_rows(isa, x, width, rotation, at)),
        ValuesMut::Bf16(x) => pieces(pool, x, width, positions, |x, at| match isa {
            // SAFETY: such an `Isa` is only made where the processor has its features.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => unsafe { halves::rotate(x, width, rotation, at) },
            _ => rotate_bf16_rows(isa, x, width, rotation, at),
        }),
    }
}

fn pieces<T: Send>(pool: &Pool, x: &mut [T], width: usize, positions: &[u32], piece: impl Fn(&mut [T], &[u32]) + Sync) {
    let rows = Rows::new(x, width * 8);
    pool.run(rows.pieces(), &|task, _| {
        let (x, range) = rows.piece(task);
        piece(x, &positions[range.start / width..]);
    });
}

per_isa!(fn rotate_rows(x: &mut [f32], width: usize, rotation: Rotation<'_>, positions: &[u32]) = rows_body);
per_isa!(fn rotate_bf16_rows(x: &mut [bf16], width: usize, rotation: Rotation<'_>, positions: &[u32]) = rows_body);

#[inline(always)]
fn rows_body<T: Element>(x: &mut [T], width: usize, rotation: Rotation, positions: &[u32]) {
    let (d, sign) = (rotation.d, if rotation.inverse { -1.0 } else { 1.0 });
    for (row, &position) in x.chunks_exact_mut(width).zip(positions) {
        let (cos, sin) = rotation.table[position as usize * d..][..d].split_at(d / 2);
        for head in row.chunks_exact_mut(d) {
            fetch::behind(head, width);
            rotate_head(head, cos, sin, rotation.pairs, sign);
        }
    }
}

#[inline(always)]
fn rotate_head<T: Element>(head: &mut [T], cos: &[f32], sin: &[f32], pairs: Pairs, sign: f32) {
    match pairs {
        Pairs::Halves => {
            let (first, second) = head.split_at_mut(cos.len());
            for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                turn(a, b, cos, sin * sign);
            }
        }
        Pairs::Interleaved => {
            for ((pair, &cos), &sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                let [a, b] = pair;
                turn(a, b, cos, sin * sign);
            }
        }
    }
}

#[inline(always)]
fn turn<T: Element>(a: &mut T, b: &mut T, cos: f32, sin: f32) {
    let (x, y) = (a.get(), b.get());
    (*a, *b) = (T::of(x * cos - y * sin), T::of(x * sin + y * cos));
}
