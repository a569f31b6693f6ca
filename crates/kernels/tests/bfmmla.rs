//! The products on `bfmmla` against its definition, bit for bit: a scalar emulation of what Arm says the instruction computes, from
//! inputs that the `half` crate rounded. The other tests hold the same products to f64 within rounding.
#![cfg(target_arch = "aarch64")]

use half::bf16;
use pocketune_kernels::blocks::dequantize;
use pocketune_kernels::matmul::{self, Ctx, Precision, Start, Weight};
use pocketune_kernels::philox::Philox;
use pocketune_kernels::{BlockType, Isa, Pool};

fn random(stream: u64, len: usize) -> Vec<f32> {
    let numbers = Philox::new(13, stream);
    (0..len as u64).map(|i| numbers.uniform(i) * 4.0 - 2.0).collect()
}

/// `a + b` rounded to odd: cut off, and the last bit set where anything was; what is subnormal then is zero.
fn add_to_odd(a: f32, b: f32) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let sum = a + b;
    // What the sum in f64 lost, exactly.
    let shadow = sum - a;
    let lost = (a - (sum - shadow)) + (b - shadow);
    let mut bits = sum.to_bits();
    if lost != 0.0 && bits & 1 == 0 {
        // Cutting off lies one below a sum that was rounded away from zero; its last bit is odd then, as it is after setting it.
        bits = if (lost < 0.0) == (sum < 0.0) { bits | 1 } else { bits - 1 };
    }
    let (sign, exponent, mantissa) = (bits >> 63, (bits >> 52 & 0x7ff) as i64 - 896, bits & ((1 << 52) - 1));
    if exponent <= 0 {
        return f32::from_bits((sign << 31) as u32);
    }
    assert!(exponent < 255, "the tests' numbers are far from the largest float");
    let odd = u64::from(mantissa & ((1 << 29) - 1) != 0);
    f32::from_bits((sign << 31 | (exponent as u64) << 23 | mantissa >> 29 | odd) as u32)
}

/// `sum = (sum + (p0 + p1)) + (p2 + p3)` by steps of four, zeros after the last; products of two bf16 are exact in f32.
fn chain(start: f32, terms: &[(f32, f32)]) -> f32 {
    let round = |x: f32| bf16::from_f32(x).to_f32();
    terms.chunks(4).fold(start, |sum, step| {
        let product = |i: usize| step.get(i).map_or(0.0, |&(a, b)| round(a) * round(b));
        let first = add_to_odd(sum, add_to_odd(product(0), product(1)));
        add_to_odd(first, add_to_odd(product(2), product(3)))
    })
}

#[test]
fn rounding_to_odd_keeps_what_fits_and_marks_what_does_not() {
    assert_eq!(add_to_odd(1.5, 2.25), 3.75);
    let next = |x: f32| f32::from_bits(x.to_bits() + 1);
    assert_eq!(add_to_odd(1.0, 1e-20), next(1.0));
    assert_eq!(add_to_odd(next(1.0), 1e-20), next(1.0));
    assert_eq!(add_to_odd(-1.0, -1e-20), -next(1.0));
    assert_eq!(add_to_odd(1.0, -1e-20), f32::from_bits(1.0_f32.to_bits() - 1));
    assert_eq!(add_to_odd(f32::MIN_POSITIVE, -f32::MIN_POSITIVE * 0.75), 0.0);
}

/// Whether there is such a processor; a test without one says so.
fn available() -> bool {
    let available = Isa::NeonBf16.available();
    if !available {
        println!("skipped: this processor has no bfmmla");
    }
    available
}

/// Runs `product` with scratch memory full of NaN.
fn with_ctx(product: impl FnOnce(&mut Ctx)) {
    let (pool, mut scratch) = (Pool::new(2).unwrap(), vec![f32::NAN; 1 << 20]);
    product(&mut Ctx { pool: &pool, isa: Isa::NeonBf16, precision: Precision::Bf16, scratch: &mut scratch });
}

#[test]
fn weights_of_every_block_type_are_rounded_as_they_are_dequantised() {
    if !available() {
        return;
    }
    for ty in BlockType::ALL {
        let (rows, cols, n) = (19, 2 * ty.block_len().max(32), 3);
        // Any bytes, but scales (the first or the last two, and the third and fourth) that are small positive half floats.
        let numbers = Philox::new(17, ty.block_bytes() as u64);
        let bytes = rows * ty.row_bytes(cols).unwrap();
        let mut data: Vec<u8> = (0..bytes).map(|i| (numbers.uniform(i as u64) * 256.0) as u8).collect();
        for block in data.chunks_exact_mut(ty.block_bytes()) {
            for at in [ty.block_bytes() - 1, 1, 3] {
                if let Some(top) = block.get_mut(at) {
                    *top = 0x20 | *top & 7;
                }
            }
        }
        let mut w = vec![0.0; rows * cols];
        dequantize(ty, &data, &mut w);
        assert!(
            w.iter().all(|w| w.is_finite())
                && w.iter().any(|w| bf16::from_f32(*w).to_f32() != *w) == (ty != BlockType::BF16)
        );
        let (x, g) = (random(1, n * cols), random(2, n * rows));
        let (mut y, mut gx) = (vec![0.0; n * rows], vec![0.0; n * cols]);
        with_ctx(|ctx| matmul::nt(ctx, Weight::new(ty, rows, cols, &data), &x, n, &mut y, Start::Zero, None));
        with_ctx(|ctx| matmul::nn(ctx, Weight::new(ty, rows, cols, &data), &g, n, &mut gx, Start::Zero, None));
        for i in 0..n {
            for j in 0..rows {
                let terms: Vec<_> = (0..cols).map(|k| (x[i * cols + k], w[j * cols + k])).collect();
                assert_eq!(y[i * rows + j].to_bits(), chain(0.0, &terms).to_bits(), "nt {} {i} {j}", ty.name());
            }
            for j in 0..cols {
                let terms: Vec<_> = (0..rows).map(|k| (g[i * rows + k], w[k * cols + j])).collect();
                assert_eq!(gx[i * cols + j].to_bits(), chain(0.0, &terms).to_bits(), "nn {} {i} {j}", ty.name());
            }
        }
    }
}

#[test]
fn every_product_has_the_bits_of_the_instructions_definition() {
    if !available() {
        return;
    }
    for (m, n, k) in
        [(1, 1, 1), (3, 5, 7), (8, 8, 4), (9, 17, 33), (8, 64, 512), (13, 67, 523), (520, 9, 11), (5, 3, 1100)]
    {
        let (a, b, before, bias) = (random(1, m * k), random(2, n * k), random(3, m * n), random(4, n));
        let transposed = |x: &[f32], rows: usize, cols: usize| -> Vec<f32> {
            (0..rows * cols).map(|at| x[at % rows * cols + at / rows]).collect()
        };
        let (a_t, b_t) = (transposed(&a, m, k), transposed(&b, n, k));
        for start in [Start::Zero, Start::Bias(&bias), Start::Output] {
            let mut want = Vec::new();
            for i in 0..m {
                for j in 0..n {
                    let first = match start {
                        Start::Zero => 0.0,
                        Start::Bias(bias) => bias[j],
                        Start::Output => before[i * n + j],
                    };
                    let terms: Vec<_> = (0..k).map(|at| (a[i * k + at], b[j * k + at])).collect();
                    want.push(chain(first, &terms).to_bits());
                }
            }
            for op in ["nt", "nn", "tn"] {
                let mut out = before.clone();
                with_ctx(|ctx| match op {
                    "nt" => matmul::nt(ctx, Weight::f32(n, k, &b), &a, m, &mut out, start, None),
                    "nn" => matmul::nn(ctx, Weight::f32(k, n, &b_t), &a, m, &mut out, start, None),
                    _ => matmul::tn(ctx, &a_t, &b_t, k, m, n, &mut out, start),
                });
                for (at, (got, want)) in out.iter().zip(&want).enumerate() {
                    let wanted = f32::from_bits(*want);
                    assert_eq!(got.to_bits(), *want, "{op} {m}x{n}x{k}: element {at} is {got}, should be {wanted}");
                }
            }
        }
    }
}
