//! Values in bf16 against the same kernels on floats: inputs that are bf16 already give the same bits, and outputs are those of floats, rounded.

use half::bf16;
use pocketune_kernels::activation::Act;
use pocketune_kernels::matmul::{self, Ctx, Low, LowRank, Precision, Shape, Start, Weight};
use pocketune_kernels::philox::Philox;
use pocketune_kernels::{BlockType, Isa, Pool, Values, ValuesMut, gated, norm};

fn floats(stream: u64, len: usize) -> Vec<f32> {
    let numbers = Philox::new(7, stream);
    (0..len).map(|at| numbers.at(at as u64)[0] as f32 / (1_u64 << 31) as f32 - 1.0).collect()
}

fn rounded(x: &[f32]) -> Vec<bf16> {
    x.iter().map(|&x| bf16::from_f32(x)).collect()
}

fn widened(x: &[bf16]) -> Vec<f32> {
    x.iter().map(|x| x.to_f32()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Rows and columns of a weight, rows of values, rank of an adapter: none, one, primes, one past a tile, several blocks of rows or of the sum.
const SHAPES: [(usize, usize, usize, usize); 11] = [
    (1, 1, 1, 0),
    (7, 13, 3, 2),
    (33, 64, 17, 0),
    (64, 33, 33, 5),
    (97, 131, 70, 16),
    (160, 96, 0, 8),
    (576, 192, 256, 16),
    (64, 129, 530, 16),
    (40, 2048, 31, 1),
    (40, 4129, 70, 16),
    (4129, 40, 31, 0),
];

#[test]
fn products_take_and_make_bf16_as_they_would_round_floats() {
    let isa = Isa::Amx;
    if !isa.available() {
        eprintln!("no AMX here: products with values in bf16 are not tried");
        return;
    }
    let precision = Precision::Bf16;
    assert!(matmul::takes_bf16(isa, precision));
    for ((rows, cols, n, rank), threads, forward) in
        SHAPES.into_iter().flat_map(|shape| [(shape, 1, true), (shape, 3, true), (shape, 1, false), (shape, 3, false)])
    {
        let pool = Pool::new(threads).unwrap();
        let (inputs, outputs) = if forward { (cols, rows) } else { (rows, cols) };
        let (w, x) = (rounded(&floats(1, rows * cols)), rounded(&floats(2, n * inputs)));
        let (wide, w) = (widened(&x), Weight::new(BlockType::BF16, rows, cols, bytemuck::cast_slice(&w)));
        let (factor, by, bias) = (floats(3, rank * outputs), floats(4, rank * inputs), floats(5, outputs));
        let shape = Shape { ty: BlockType::BF16, rows, cols, n, rank };
        let len = if forward { matmul::nt_scratch } else { matmul::nn_scratch }(shape, threads, isa, precision);
        let run = |x: Values, y: ValuesMut, start: Start| {
            let (mut scratch, mut h) = (vec![f32::NAN; len], vec![f32::NAN; n * rank]);
            let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
            let low = Low::Made { by: &by, scale: 0.5, into: &mut h };
            let low_rank = (rank > 0).then_some(LowRank { low, factor: &factor, rank });
            if forward {
                matmul::nt_values(&mut ctx, w, (x, n), y, start, low_rank, false);
            } else {
                matmul::nn_values(&mut ctx, w, (x, n), y, start, low_rank);
            }
            h
        };
        for start in [Start::Zero, Start::Bias(&bias)] {
            let mut want = vec![f32::NAN; n * outputs];
            let (mut got, mut half) = (want.clone(), vec![bf16::NAN; n * outputs]);
            let h = run(Values::F32(&wide), ValuesMut::F32(&mut want), start);
            let same = run(Values::Bf16(&x), ValuesMut::F32(&mut got), start);
            run(Values::Bf16(&x), ValuesMut::Bf16(&mut half), start);
            let what = format!("{rows}x{cols}, {n} rows, rank {rank}, {threads} threads, forward {forward}");
            assert_eq!(bits(&got), bits(&want), "{what}");
            assert_eq!(bits(&same), bits(&h), "{what}: low-rank values");
            assert_eq!(half, rounded(&want), "{what}: in bf16");
        }
        // Sums that go on from an output of floats.
        let mut want = floats(6, n * outputs);
        let mut got = want.clone();
        run(Values::F32(&wide), ValuesMut::F32(&mut want), Start::Output);
        run(Values::Bf16(&x), ValuesMut::F32(&mut got), Start::Output);
        assert_eq!(bits(&got), bits(&want));
    }
}

#[test]
fn gradients_of_factors_read_bf16_as_they_would_round_floats() {
    for (isa, precision) in Isa::ALL.iter().flat_map(|&isa| Precision::ALL.map(|precision| (isa, precision))) {
        if !isa.available() {
            continue;
        }
        for (p, q, n, _) in SHAPES {
            let pool = Pool::new(2).unwrap();
            let (a, b) = (floats(1, n * p), rounded(&floats(2, n * q)));
            let wide = widened(&b);
            let run = |b: Values| {
                let mut scratch = vec![f32::NAN; matmul::tn_scratch(n, p, q, 2, isa, precision)];
                let mut c = vec![f32::NAN; p * q];
                let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
                matmul::tn_values(&mut ctx, &a, b, n, p, q, &mut c, Start::Zero);
                c
            };
            let (got, want) = (run(Values::Bf16(&b)), run(Values::F32(&wide)));
            assert_eq!(bits(&got), bits(&want), "{} {precision:?} {p}x{q}, {n} rows", isa.name());
        }
    }
}

#[test]
fn a_sum_that_goes_on_is_not_written_in_bf16() {
    let (isa, precision) = (Isa::Amx, Precision::Bf16);
    if !isa.available() {
        eprintln!("no AMX here: products with values in bf16 are not tried");
        return;
    }
    let shape = Shape { ty: BlockType::F32, rows: 1, cols: 1, n: 1, rank: 0 };
    let refused = std::panic::catch_unwind(|| {
        let pool = Pool::new(1).unwrap();
        let mut scratch = vec![0.0; matmul::nt_scratch(shape, 1, isa, precision)];
        let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
        let (w, out) = (Weight::f32(1, 1, &[0.0]), ValuesMut::Bf16(&mut [bf16::ZERO]));
        matmul::nt_values(&mut ctx, w, (Values::Bf16(&[bf16::ZERO]), 1), out, Start::Output, None, false);
    });
    assert_eq!(*refused.unwrap_err().downcast_ref::<&str>().unwrap(), "a sum in bf16 does not go on");
}

#[test]
fn norms_and_gated_products_round_what_floats_give() {
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.available()) {
        for (width, rows, threads) in [(1, 1, 1), (7, 3, 2), (33, 17, 1), (576, 65, 3)] {
            let pool = Pool::new(threads).unwrap();
            let (x, w) = (floats(1, width * rows), floats(2, width));
            let (mut want, mut got) = (vec![f32::NAN; x.len()], vec![bf16::NAN; x.len()]);
            norm::forward(isa, &pool, &x, &w, 1e-5, &mut want);
            norm::forward_values(isa, &pool, &x, &w, 1e-5, ValuesMut::Bf16(&mut got));
            assert_eq!(got, rounded(&want), "{} norm of {width}", isa.name());

            let [gate, up, g] = [3, 4, 5].map(|stream| rounded(&floats(stream, x.len())));
            let gate: Vec<bf16> = gate.iter().map(|x| bf16::from_f32(8.0 * x.to_f32())).collect();
            let [wide_gate, wide_up, wide_g] = [&gate, &up, &g].map(|x| widened(x));
            for act in [Act::Silu, Act::GeluTanh, Act::Gelu, Act::Relu] {
                let what = format!("{} {act:?}, {width}", isa.name());
                // On AMX two activations are computed otherwise: within 3e-6, and so to the nearest bf16 or the one beside it.
                let near = isa == Isa::Amx && matches!(act, Act::Silu | Act::GeluTanh);
                let check = |got: &[bf16], want: &[f32]| match near {
                    false => assert_eq!(got, rounded(want), "{what}"),
                    true => got.iter().zip(want).for_each(|(got, want)| {
                        let error = (got.to_f32() - want).abs();
                        assert!(error <= want.abs() * (1.0 / 256.0 + 1e-5) + 3e-6, "{what}: {got} for {want}");
                    }),
                };
                gated::forward(isa, &pool, act, &wide_gate, &wide_up, &mut want);
                let values = (Values::Bf16(&gate), Values::Bf16(&up));
                gated::forward_values(isa, &pool, act, values.0, values.1, ValuesMut::Bf16(&mut got));
                check(&got, &want);
                let values = (Values::F32(&wide_gate), Values::F32(&wide_up));
                gated::forward_values(isa, &pool, act, values.0, values.1, ValuesMut::Bf16(&mut got));
                assert_eq!(got, rounded(&want), "{what}, from floats");
                let (mut gate, mut up) = (gate.clone(), up.clone());
                let (mut wide_gate, mut wide_up) = (wide_gate.clone(), wide_up.clone());
                gated::backward(isa, &pool, act, None, &mut wide_gate, &mut wide_up, &wide_g);
                let values = (ValuesMut::Bf16(&mut gate), ValuesMut::Bf16(&mut up));
                gated::backward_values(isa, &pool, act, None, values.0, values.1, Values::Bf16(&g));
                check(&gate, &wide_gate);
                check(&up, &wide_up);
            }
        }
    }
}

/// What is far out stays what it is, and what is no number stays none.
#[test]
fn gated_products_of_numbers_far_out() {
    let gate = [1e30, -1e30, 200.0, -200.0, 0.0, f32::INFINITY, f32::NAN].map(bf16::from_f32);
    let ones = [bf16::ONE; 7];
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.available()) {
        let (pool, mut out) = (Pool::new(1).unwrap(), [bf16::ZERO; 7]);
        for act in [Act::Silu, Act::GeluTanh] {
            let (x, up) = (Values::Bf16(&gate), Values::Bf16(&ones));
            gated::forward_values(isa, &pool, act, x, up, ValuesMut::Bf16(&mut out));
            let [large, small, above, below, zero, infinite, none] = out.map(bf16::to_f32);
            let what = format!("{} {act:?} {out:?}", isa.name());
            assert_eq!([large, above, zero, infinite], [gate[0].to_f32(), 200.0, 0.0, f32::INFINITY], "{what}");
            assert!(small.abs() < 1e-3 && below.abs() < 1e-25 && none.is_nan(), "{what}");
        }
    }
}
