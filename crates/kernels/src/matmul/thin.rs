//! `c = aᵀ b` with a few rows of `a`'s columns, the gradients of adapters: so little is done with an element of `b` that copying it to a panel, as other
//! products do, would cost as much. It is read where it lies, a vector of columns of some rows at a time; the lines that follow in these rows are asked for meanwhile.

use super::Start;
use super::out::Out;
use super::product::{Left, Product, Right};
use super::split::Split;
use crate::lanes::Lanes;
use crate::{Pool, Values, fetch};

/// Rows of `c` at most.
const MOST: usize = 16;
/// Rows of `b` that are worked on for one vector of columns after another: a line of each stays in the first-level cache until the next vector needs it.
const ROWS: usize = 32;
/// Columns ahead that are asked for.
const AHEAD: usize = 32;
/// Columns of a task: at least, and at most.
const COLUMNS: (usize, usize) = (32, 512);

/// What an instruction set runs of a product.
pub(super) struct Thin {
    /// Element `(i, k)` lies at `i + k left_k`.
    left: *const f32,
    left_k: usize,
    /// Rows of `n` elements, and the distance of these rows.
    b: *const f32,
    b_row: usize,
    m: usize,
    k: usize,
    n: usize,
    /// Null for zeros; `init_row` is 0 for a bias.
    init: *const f32,
    init_row: usize,
    out: *mut f32,
    out_row: usize,
}

/// Runs the product where it is one of these.
pub(super) fn run(run: unsafe fn(&Thin), pool: &Pool, product: &mut Product) -> bool {
    let (m, n, k, start) = (product.m, product.n, product.k, product.start);
    let (Left { data: Values::F32(left), row: 1, k: left_k }, Right::Cols(w)) = (product.left, product.right) else {
        return false;
    };
    let Some(Values::F32(b)) = w.values().filter(|_| m <= MOST && product.tail.is_none()) else { return false };
    assert!(left.len() > (k - 1) * left_k + m - 1 && b.len() == k * n, "operands of {k} rows");
    let out = Out::new(product.out.floats(), n);
    let split = Split::new((m, n), COLUMNS, MOST, pool.threads());
    pool.run(split.tasks(), &|task, _| {
        let (rows, cols) = split.task(task);
        let first = out.tile(rows.clone(), cols.clone());
        let (init, init_row) = match start {
            Start::Zero => (std::ptr::null(), 0),
            Start::Bias(bias) => (bias[cols.clone()].as_ptr(), 0),
            Start::Output => (first.cast_const(), n),
        };
        let thin = Thin {
            left: left[rows.start..].as_ptr(),
            left_k,
            b: b[cols.start..].as_ptr(),
            b_row: n,
            m: rows.len(),
            k,
            n: cols.len(),
            init,
            init_row,
            out: first,
            out_row: n,
        };
        // SAFETY: the processor has the instructions (checked by the product); both operands have all elements by the assertion, and `first`
        // begins a part of the output that this task alone touches.
        unsafe { run(&thin) };
    });
    true
}

/// All of `t`, `MR` rows of the output at a time, then what is left by powers of two.
///
/// # Safety
/// The processor has `L`'s instructions, and the pointers of `t` reach what its shape says.
#[inline(always)]
pub(super) unsafe fn thin<L: Lanes, const MR: usize>(t: &Thin) {
    for k0 in (0..t.k).step_by(ROWS) {
        let rows = ROWS.min(t.k - k0);
        let (init, init_row) = if k0 == 0 { (t.init, t.init_row) } else { (t.out.cast_const(), t.out_row) };
        let t = Thin {
            left: t.left.wrapping_add(k0 * t.left_k),
            b: t.b.wrapping_add(k0 * t.b_row),
            k: rows,
            init,
            init_row,
            ..*t
        };
        for j in (0..t.n).step_by(L::LANES) {
            let mut i = 0;
            // SAFETY: rows `i..i + step` are below `m`; the rest is the caller's promise.
            unsafe {
                while t.m - i >= MR {
                    tile::<L, MR>(&t, i, j);
                    i += MR;
                }
                if MR > 8 && t.m - i >= 8 {
                    tile::<L, 8>(&t, i, j);
                    i += 8;
                }
                if t.m - i >= 4 {
                    tile::<L, 4>(&t, i, j);
                    i += 4;
                }
                if t.m - i >= 2 {
                    tile::<L, 2>(&t, i, j);
                    i += 2;
                }
                if t.m - i >= 1 {
                    tile::<L, 1>(&t, i, j);
                }
            }
        }
    }
}

/// Rows `i..i + MR` and a vector of columns from `j` on.
#[inline(always)]
unsafe fn tile<L: Lanes, const MR: usize>(t: &Thin, i: usize, j: usize) {
    let count = t.n - j;
    // SAFETY: the caller's promise; what is asked for ahead need not be anybody's.
    unsafe {
        let mut sums = [L::zero(); MR];
        if !t.init.is_null() {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = L::load_up_to(t.init.add((i + r) * t.init_row + j), count);
            }
        }
        let (mut left, mut b) = (t.left.add(i), t.b.add(j));
        for _ in 0..t.k {
            if i == 0 {
                fetch::line(b.wrapping_add(AHEAD).cast());
            }
            let x = L::load_up_to(b, count);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = L::fma(L::splat(left.wrapping_add(r)), x, *sum);
            }
            left = left.wrapping_add(t.left_k);
            b = b.wrapping_add(t.b_row);
        }
        for (r, &sum) in sums.iter().enumerate() {
            L::store_up_to(t.out.add((i + r) * t.out_row + j), sum, count);
        }
    }
}
