//! Every operation and its derivative as plain loops, side by side: the code that the fast kernels are compared with, forever.
//!
//! Generic over `f32` and `f64`, so that derivatives can be checked against finite differences in `f64`. Nothing here is fast,
//! threaded or in place, and nothing in a real run calls it.
//!
//! Legend: `n` rows (tokens), `c` columns, `h` heads, `d` elements a head, `r` adapter rank; `g…` is the gradient of the loss by `…`.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use crate::activation::{self, Act};
use crate::attention::{Heads, Segment};

/// The two float types that the reference runs in.
pub trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + From<f32>
{
    /// The square root.
    fn sqrt(self) -> Self;
    /// e to the power of `self`.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
}

macro_rules! real {
    ($t:ident) => {
        impl Real for $t {
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            fn exp(self) -> Self {
                $t::exp(self)
            }
            fn ln(self) -> Self {
                $t::ln(self)
            }
            fn tanh(self) -> Self {
                $t::tanh(self)
            }
            fn erf(self) -> Self {
                erf(f64::from(self)) as $t
            }
        }
    };
}
real!(f32);
real!(f64);

/// `2/sqrt(π) e^(-x²) Σ 2^n x^(2n+1) / (1·3·…·(2n+1))`: all terms have one sign, so nothing cancels. Beyond 6 it is 1 to the last bit.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

fn real<F: Real>(x: f32) -> F {
    F::from(x)
}

fn zeros<F: Real>(len: usize) -> Vec<F> {
    vec![real(0.0); len]
}

/// `y[n,o] = bias[o] + Σ_k x[n,k] w[o,k]`.
pub fn linear<F: Real>(x: &[F], w: &[F], bias: &[F], n: usize, rows: usize, cols: usize) -> Vec<F> {
    let mut y = zeros(n * rows);
    for i in 0..n {
        for o in 0..rows {
            let mut sum = bias.get(o).copied().unwrap_or(real(0.0));
            for k in 0..cols {
                sum += x[i * cols + k] * w[o * cols + k];
            }
            y[i * rows + o] = sum;
        }
    }
    y
}

/// `gx[n,k] = Σ_o gy[n,o] w[o,k]` and `gw[o,k] = Σ_n gy[n,o] x[n,k]`.
pub fn linear_backward<F: Real>(x: &[F], w: &[F], gy: &[F], n: usize, rows: usize, cols: usize) -> (Vec<F>, Vec<F>) {
    let (mut gx, mut gw) = (zeros(n * cols), zeros(rows * cols));
    for i in 0..n {
        for o in 0..rows {
            for k in 0..cols {
                gx[i * cols + k] += gy[i * rows + o] * w[o * cols + k];
                gw[o * cols + k] += gy[i * rows + o] * x[i * cols + k];
            }
        }
    }
    (gx, gw)
}

/// RMS norm: `y = x w / sqrt(mean(x²) + eps)`, each row of `w.len()` elements on its own.
pub fn norm<F: Real>(x: &[F], w: &[F], eps: f32) -> Vec<F> {
    let c = w.len();
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(c) {
        let rstd = rstd(row, eps);
        y.extend(row.iter().zip(w).map(|(&x, &w)| x * rstd * w));
    }
    y
}

fn rstd<F: Real>(row: &[F], eps: f32) -> F {
    let mut squares = real::<F>(0.0);
    for &x in row {
        squares += x * x;
    }
    real::<F>(1.0) / (squares / real(row.len() as f32) + real(eps)).sqrt()
}

/// `gx = rstd (gy w) - x rstd³/c Σ (gy w x)`.
pub fn norm_backward<F: Real>(x: &[F], w: &[F], eps: f32, gy: &[F]) -> Vec<F> {
    let c = w.len();
    let mut gx = Vec::with_capacity(x.len());
    for (row, gy) in x.chunks_exact(c).zip(gy.chunks_exact(c)) {
        let rstd = rstd(row, eps);
        let mut dot = real::<F>(0.0);
        for j in 0..c {
            dot += gy[j] * w[j] * row[j];
        }
        let back = dot * rstd * rstd * rstd / real(c as f32);
        gx.extend((0..c).map(|j| gy[j] * w[j] * rstd - row[j] * back));
    }
    gx
}

/// Layer norm: `y = (x - mean) w / sqrt(variance + eps) + b`, each row of `w.len()` elements on its own.
pub fn layer_norm<F: Real>(x: &[F], w: &[F], b: &[F], eps: f32) -> Vec<F> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks_exact(w.len()) {
        let (n, _) = standardised(row, eps);
        y.extend((0..w.len()).map(|j| n[j] * w[j] + b[j]));
    }
    y
}

/// A row less its mean, over its standard deviation; and one over that.
fn standardised<F: Real>(row: &[F], eps: f32) -> (Vec<F>, F) {
    let c: F = real(row.len() as f32);
    let mut sum = real::<F>(0.0);
    for &x in row {
        sum += x;
    }
    let mean = sum / c;
    let centred: Vec<F> = row.iter().map(|&x| x - mean).collect();
    let rstd = rstd(&centred, eps);
    (centred.into_iter().map(|x| x * rstd).collect(), rstd)
}

/// `gx = rstd (gy w - mean(gy w) - n mean(gy w n))`, `n` being the standardised row.
pub fn layer_norm_backward<F: Real>(x: &[F], w: &[F], eps: f32, gy: &[F]) -> Vec<F> {
    let c = w.len();
    let mut gx = Vec::with_capacity(x.len());
    for (row, gy) in x.chunks_exact(c).zip(gy.chunks_exact(c)) {
        let (n, rstd) = standardised(row, eps);
        let (mut plain, mut along) = (real::<F>(0.0), real::<F>(0.0));
        for j in 0..c {
            plain += gy[j] * w[j] / real(c as f32);
            along += gy[j] * w[j] * n[j] / real(c as f32);
        }
        gx.extend((0..c).map(|j| rstd * (gy[j] * w[j] - plain - n[j] * along)));
    }
    gx
}

/// Rotates pairs of each head by `angle(position, pair)`: `(a, b) -> (a cos - b sin, a sin + b cos)`. Its derivative is the rotation
/// by the opposite angle, `inverse`. Pairs are `(2i, 2i+1)` when `interleaved`, else `(i, i + d/2)`.
pub fn rope<F: Real>(
    x: &[F],
    cos_sin: &[(F, F)],
    positions: &[u32],
    d: usize,
    interleaved: bool,
    inverse: bool,
) -> Vec<F> {
    let (mut y, half) = (x.to_vec(), d / 2);
    let width = x.len() / positions.len().max(1);
    for (row, &position) in positions.iter().enumerate() {
        for head in 0..width / d {
            for i in 0..half {
                let base = row * width + head * d;
                let (a, b) = if interleaved { (base + 2 * i, base + 2 * i + 1) } else { (base + i, base + i + half) };
                let (cos, sin) = cos_sin[position as usize * half + i];
                let sin = if inverse { -sin } else { sin };
                (y[a], y[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
            }
        }
    }
    y
}

/// Softmax attention over each segment; returns the output and the log-sum-exp of each (row, head).
pub fn attention<F: Real>(q: &[F], k: &[F], v: &[F], heads: Heads, segments: &[Segment]) -> (Vec<F>, Vec<F>) {
    let Heads { queries: h, kv, d, .. } = heads;
    let n = q.len() / (h * d);
    let (mut out, mut lse) = (zeros(n * h * d), zeros(n * h));
    for_each_row(heads, segments, |row, head, keys| {
        let at = row * h * d + head * d;
        let scores: Vec<F> = keys.clone().map(|key| score(q, k, heads, at, key, head)).collect();
        let top = scores.iter().copied().fold(real::<F>(f32::MIN), |a, b| if b > a { b } else { a });
        let mut total = real::<F>(0.0);
        for &s in &scores {
            total += (s - top).exp();
        }
        lse[row * h + head] = top + total.ln();
        for (key, &s) in keys.zip(&scores) {
            let p = (s - top).exp() / total;
            for j in 0..d {
                out[at + j] += p * v[key * kv * d + head / (h / kv) * d + j];
            }
        }
    });
    (out, lse)
}

/// With `p = softmax(s)`: `gv = pᵀ go`, `gs = p (go vᵀ - Σ go o)`, `gq = gs k scale`, `gk = gsᵀ q scale`.
#[allow(clippy::too_many_arguments)]
pub fn attention_backward<F: Real>(
    q: &[F],
    k: &[F],
    v: &[F],
    out: &[F],
    lse: &[F],
    go: &[F],
    heads: Heads,
    segments: &[Segment],
) -> (Vec<F>, Vec<F>, Vec<F>) {
    let Heads { queries: h, kv, d, .. } = heads;
    let (mut gq, mut gk, mut gv) = (zeros(q.len()), zeros(k.len()), zeros(v.len()));
    let scale: F = real(heads.scale);
    for_each_row(heads, segments, |row, head, keys| {
        let at = row * h * d + head * d;
        let mut delta = real::<F>(0.0);
        for j in 0..d {
            delta += go[at + j] * out[at + j];
        }
        for key in keys {
            let kv_at = key * kv * d + head / (h / kv) * d;
            let p = (score(q, k, heads, at, key, head) - lse[row * h + head]).exp();
            let mut gp = real::<F>(0.0);
            for j in 0..d {
                gv[kv_at + j] += p * go[at + j];
                gp += go[at + j] * v[kv_at + j];
            }
            let gs = p * (gp - delta) * scale;
            for j in 0..d {
                gq[at + j] += gs * k[kv_at + j];
                gk[kv_at + j] += gs * q[at + j];
            }
        }
    });
    (gq, gk, gv)
}

fn score<F: Real>(q: &[F], k: &[F], heads: Heads, q_at: usize, key: usize, head: usize) -> F {
    let k_at = key * heads.kv * heads.d + head / (heads.queries / heads.kv) * heads.d;
    let mut s = real::<F>(0.0);
    for j in 0..heads.d {
        s += q[q_at + j] * k[k_at + j];
    }
    s * real(heads.scale)
}

/// Calls `each(query row, head, key rows it sees)`.
fn for_each_row(heads: Heads, segments: &[Segment], mut each: impl FnMut(usize, usize, std::ops::Range<usize>)) {
    for segment in segments {
        for i in 0..segment.q_len {
            let seen = segment.seen(i, heads.window);
            for head in 0..heads.queries {
                each(segment.q_start + i, head, segment.k_start + seen.start..segment.k_start + seen.end);
            }
        }
    }
}

/// `act(x)`.
pub fn act<F: Real>(act: Act, x: &[F]) -> Vec<F> {
    x.iter().map(|&x| activation(act, x).0).collect()
}

/// `gx = g act'(x)`.
pub fn act_backward<F: Real>(act: Act, x: &[F], g: &[F]) -> Vec<F> {
    x.iter().zip(g).map(|(&x, &g)| g * activation(act, x).1).collect()
}

/// `act(gate) up`.
pub fn gated<F: Real>(act: Act, gate: &[F], up: &[F]) -> Vec<F> {
    gate.iter().zip(up).map(|(&gate, &up)| activation(act, gate).0 * up).collect()
}

/// `ggate = g up act'(gate)`, `gup = g act(gate)`.
pub fn gated_backward<F: Real>(act: Act, gate: &[F], up: &[F], g: &[F]) -> (Vec<F>, Vec<F>) {
    (0..g.len())
        .map(|i| {
            let (value, slope) = activation(act, gate[i]);
            (g[i] * up[i] * slope, g[i] * value)
        })
        .unzip()
}

/// The activation and its derivative.
fn activation<F: Real>(act: Act, x: F) -> (F, F) {
    let one = real::<F>(1.0);
    match act {
        Act::Silu => {
            let s = one / (one + (-x).exp());
            (x * s, s * (one + x * (one - s)))
        }
        Act::GeluTanh => {
            let (half, a, b) = (real::<F>(0.5), real::<F>(activation::GELU_SCALE), real::<F>(activation::GELU_CUBIC));
            let t = (a * (x + b * x * x * x)).tanh();
            let slope = a * (one + real::<F>(3.0) * b * x * x);
            (half * x * (one + t), half * (one + t) + half * x * (one - t * t) * slope)
        }
        Act::Gelu => {
            let root: F = real::<F>(2.0).sqrt();
            let below = real::<F>(0.5) * (one + (x / root).erf());
            let density = real::<F>(crate::math::NORMAL_PEAK) * (-x * x / (one + one)).exp();
            (x * below, below + x * density)
        }
        Act::Relu if x > real(0.0) => (x, one),
        Act::Relu => (real(0.0), real(0.0)),
        Act::Tanh => (x.tanh(), one - x.tanh() * x.tanh()),
    }
}

/// Per row: `logsumexp(logits) - logits[label]`, and its gradient by the logits, `softmax - onehot`.
pub fn cross_entropy<F: Real>(logits: &[F], labels: &[u32]) -> (Vec<F>, Vec<F>) {
    let vocab = logits.len() / labels.len().max(1);
    let (mut losses, mut grads) = (Vec::new(), Vec::new());
    for (row, &label) in logits.chunks_exact(vocab.max(1)).zip(labels) {
        let top = row.iter().copied().fold(row[0], |a, b| if b > a { b } else { a });
        let mut total = real::<F>(0.0);
        for &x in row {
            total += (x - top).exp();
        }
        losses.push(top + total.ln() - row[label as usize]);
        grads.extend(
            row.iter()
                .enumerate()
                .map(|(j, &x)| (x - top).exp() / total - if j == label as usize { real(1.0) } else { real(0.0) }),
        );
    }
    (losses, grads)
}

/// The lengths of the rows of `w + scale bᵀ a`, with `w` of `[rows, cols]`, `a` of `[rank, cols]` and `b` of `[rank, rows]`.
pub fn lengths<T: Real>(w: &[T], a: &[T], b: &[T], scale: T, rows: usize) -> Vec<T> {
    let cols = w.len() / rows.max(1);
    let row = |i: usize| {
        let element = |j: usize| {
            let ranks = 0..a.len() / cols;
            ranks.fold(w[i * cols + j], |x, r| x + scale * b[r * rows + i] * a[r * cols + j])
        };
        (0..cols).fold(T::from(0.0), |sum, j| sum + element(j) * element(j)).sqrt()
    };
    (0..rows).map(row).collect()
}

/// DoRA's magnitudes, `y = z m / n + bias`.
pub fn dora<T: Real>(z: &[T], m: &[T], n: &[T], bias: &[T]) -> Vec<T> {
    z.iter().enumerate().map(|(at, &z)| z * m[at % m.len()] / n[at % m.len()] + bias[at % m.len()]).collect()
}

/// Gradients of [`dora`] by `z` and `m`, where `n` is a constant.
pub fn dora_backward<T: Real>(z: &[T], m: &[T], n: &[T], g: &[T]) -> (Vec<T>, Vec<T>) {
    let gz = g.iter().enumerate().map(|(at, &g)| g * m[at % m.len()] / n[at % m.len()]).collect();
    let mut gm = vec![T::from(0.0); m.len()];
    for (at, (&g, &z)) in g.iter().zip(z).enumerate() {
        gm[at % m.len()] += g * z / n[at % m.len()];
    }
    (gz, gm)
}
