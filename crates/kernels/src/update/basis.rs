//! Bases of a few vectors: made orthonormal, and turned to the directions along which a matrix is largest. Sums are in f64 by ascending index, on one thread: vectors are few,
//! and so bits depend on nothing. It knows no matrix of more than [`MOST`] such vectors.

/// Vectors of a basis that can be turned.
pub const MOST: usize = 32;

/// What is left of a vector that depends on those before it, and becomes zero.
const NOTHING: f64 = 1e-5;

/// Sweeps over all pairs, after which a symmetric matrix of this size is diagonal to rounding.
const SWEEPS: usize = 16;

/// Makes `count` vectors of `len` numbers orthonormal, one after the other (Gram-Schmidt, twice each). Number `i` of vector `k` lies at `i by.0 + k by.1`.
pub fn orthonormalise(y: &mut [f32], (len, count): (usize, usize), by: (usize, usize)) {
    let at = |i: usize, k: usize| i * by.0 + k * by.1;
    for k in 0..count {
        let size = |y: &[f32]| (0..len).map(|i| f64::from(y[at(i, k)]).powi(2)).sum::<f64>().sqrt();
        let before = size(y);
        for other in (0..k).chain(0..k) {
            let along: f64 = (0..len).map(|i| f64::from(y[at(i, other)]) * f64::from(y[at(i, k)])).sum();
            for i in 0..len {
                y[at(i, k)] = (f64::from(y[at(i, k)]) - along * f64::from(y[at(i, other)])) as f32;
            }
        }
        let left = size(y);
        let scale = if left > NOTHING * before { 1.0 / left } else { 0.0 };
        (0..len).for_each(|i| y[at(i, k)] = (f64::from(y[at(i, k)]) * scale) as f32);
    }
}

/// Of the space of the orthonormal vectors `y`, the directions along which the symmetric matrix `A` is largest, from `ay = A y`: `kept` of them, the largest
/// first (Rayleigh and Ritz). `y` and `ay` lie as [`orthonormalise`] has them, `to` with steps of its own.
pub fn turn(
    [y, ay]: [&[f32]; 2],
    (len, count): (usize, usize),
    by: (usize, usize),
    to: &mut [f32],
    kept: usize,
    to_by: (usize, usize),
) {
    assert!(kept <= count && count <= MOST, "{kept} of {count} vectors, where {MOST} can be turned");
    let at = |i: usize, k: usize| i * by.0 + k * by.1;
    let mut a = [[0.0_f64; MOST]; MOST];
    let inner = |k: usize, other: usize| -> f64 {
        (0..len).map(|i| f64::from(y[at(i, k)]) * f64::from(ay[at(i, other)])).sum()
    };
    for (k, row) in a[..count].iter_mut().enumerate() {
        for (other, to) in row[..count].iter_mut().enumerate() {
            *to = (inner(k, other) + inner(other, k)) / 2.0;
        }
    }
    let turned = diagonalise(&mut a, count);
    let mut order: [usize; MOST] = std::array::from_fn(|k| k);
    order[..count].sort_unstable_by(|&one, &two| a[two][two].total_cmp(&a[one][one]).then(one.cmp(&two)));
    for i in 0..len {
        for (k, &from) in order[..kept].iter().enumerate() {
            let sum: f64 = (0..count).map(|other| f64::from(y[at(i, other)]) * turned[other][from]).sum();
            to[i * to_by.0 + k * to_by.1] = sum as f32;
        }
    }
}

/// Makes the first `n` rows and columns of a symmetric matrix diagonal (Jacobi's rotations, pair by pair), and says by what: column `k` of the result is the direction of the
/// `k`-th number of the diagonal.
fn diagonalise(a: &mut [[f64; MOST]; MOST], n: usize) -> [[f64; MOST]; MOST] {
    let mut turned = [[0.0; MOST]; MOST];
    (0..n).for_each(|k| turned[k][k] = 1.0);
    for _ in 0..SWEEPS {
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q] == 0.0 {
                    continue;
                }
                let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
                let t = theta.signum() / (theta.abs() + theta.mul_add(theta, 1.0).sqrt());
                let c = 1.0 / t.mul_add(t, 1.0).sqrt();
                let s = t * c;
                let rotate = |x: &mut f64, y: &mut f64| (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
                for row in &mut a[..n] {
                    let (left, right) = row.split_at_mut(q);
                    rotate(&mut left[p], &mut right[0]);
                }
                let (upper, lower) = a.split_at_mut(q);
                upper[p][..n].iter_mut().zip(&mut lower[0][..n]).for_each(|(x, y)| rotate(x, y));
                for row in &mut turned[..n] {
                    let (left, right) = row.split_at_mut(q);
                    rotate(&mut left[p], &mut right[0]);
                }
            }
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, by: f32) -> Vec<f32> {
        (0..len).map(|i| ((i * i) as f32 * by).sin()).collect()
    }

    #[test]
    fn vectors_become_orthonormal_and_one_that_depends_on_others_becomes_zero() {
        let (len, count) = (50, 5);
        for by in [(count, 1), (1, len)] {
            let mut y = numbers(len * count, 0.37);
            (0..len).for_each(|i| y[i * by.0 + 3 * by.1] = 2.0 * y[i * by.0] - y[i * by.0 + by.1]);
            orthonormalise(&mut y, (len, count), by);
            for one in 0..count {
                for two in 0..count {
                    let product: f32 = (0..len).map(|i| y[i * by.0 + one * by.1] * y[i * by.0 + two * by.1]).sum();
                    let want = if one == two && one != 3 { 1.0 } else { 0.0 };
                    assert!((product - want).abs() < 1e-6, "{one} {two}: {product}");
                }
            }
        }
    }

    #[test]
    fn the_directions_of_a_diagonal_matrix_are_its_axes_the_largest_first() {
        // All of the space: any basis of it is turned to the axes.
        let len = 6;
        let diagonal = [3.0, 9.0, 1.0, 7.0, 2.0, 5.0];
        let mut y = numbers(len * len, 0.71);
        orthonormalise(&mut y, (len, len), (1, len));
        let ay: Vec<f32> = y.iter().enumerate().map(|(at, y)| y * diagonal[at % len]).collect();
        let mut to = vec![0.0; 3 * len];
        turn([&y, &ay], (len, len), (1, len), &mut to, 3, (3, 1));
        for (k, axis) in [1, 3, 5].into_iter().enumerate() {
            for i in 0..len {
                let want = if i == axis { 1.0 } else { 0.0 };
                assert!((to[i * 3 + k].abs() - want).abs() < 1e-6, "{k} {i}: {}", to[i * 3 + k]);
            }
        }
    }
}
