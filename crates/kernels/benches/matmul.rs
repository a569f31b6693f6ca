//! Rates of the products (an element is a floating-point operation, so `Gelem/s` reads GFLOP/s), for each instruction set of this
//! processor, on one thread and on all. A kernel is timed only after it matched the scalar reference on the same weight.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pocketune_kernels::matmul::{self, Ctx, Shape, Start, Weight};
use pocketune_kernels::{BlockType, Isa, Pool};

const N: usize = 256;
const SHAPES: [(usize, usize); 4] = [(896, 896), (4864, 896), (896, 4864), (576, 1536)];

/// Whether the sum runs along the weight's rows (forward) or over them (backward).
#[derive(Clone, Copy)]
enum Op {
    Nt,
    Nn,
}

fn floats(len: usize) -> Vec<f32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn blocks(ty: BlockType, len: usize) -> Vec<u8> {
    match ty {
        BlockType::F32 => floats(len).iter().flat_map(|x| x.to_le_bytes()).collect(),
        BlockType::Q4_1 => {
            // A scale of 2^-4 and a minimum of -1/2, as half floats, and any nibbles.
            let nibble = |block: usize, i: usize| (block * 31 + i * 17) as u8;
            let block = |b| [0, 0x2c, 0, 0xb8].into_iter().chain((0..16).map(move |i| nibble(b, i)));
            (0..len / 32).flat_map(block).collect()
        }
        _ => unreachable!("the types below"),
    }
}

fn run(op: Op, ctx: &mut Ctx, w: Weight, x: &[f32], n: usize, y: &mut [f32]) {
    match op {
        Op::Nt => matmul::nt(ctx, w, &x[..n * w.cols], n, &mut y[..n * w.rows], Start::Zero, None),
        Op::Nn => matmul::nn(ctx, w, &x[..n * w.rows], n, &mut y[..n * w.cols], Start::Zero, None),
    }
}

/// Panics unless five rows come out as the reference has them.
fn check(op: Op, ctx: &mut Ctx, w: Weight, x: &[f32], y: &mut [f32]) {
    let (width, k) = if let Op::Nt = op { (w.rows, w.cols) } else { (w.cols, w.rows) };
    let mut expected = vec![0.0; 5 * width];
    let mut scalar = Ctx { pool: ctx.pool, isa: Isa::Scalar, precision: ctx.precision, scratch: &mut [] };
    run(op, &mut scalar, w, x, 5, &mut expected);
    run(op, ctx, w, x, 5, y);
    let exact = ctx.precision.same_everywhere();
    for (y, e) in y.iter().zip(&expected) {
        let fits = if exact { y.to_bits() == e.to_bits() } else { (y - e).abs() <= 1e-5 * k as f32 };
        assert!(fits, "{} gives {y} for {e}", ctx.isa.name());
    }
}

fn products(criterion: &mut Criterion) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for isa in Isa::ALL.iter().copied().filter(|&isa| isa != Isa::Scalar && isa.available()) {
        let precision = isa.precision();
        for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
            let pool = Pool::new(threads).expect("threads start");
            let mut group = criterion.benchmark_group(format!("{} x{threads}", isa.name()));
            for ((rows, cols), ty) in SHAPES.into_iter().flat_map(|s| [(s, BlockType::Q4_1), (s, BlockType::F32)]) {
                let data = blocks(ty, rows * cols);
                let w = Weight::new(ty, rows, cols, &data);
                let (x, mut y) = (floats(N * rows.max(cols)), vec![0.0; N * rows.max(cols)]);
                group.throughput(Throughput::Elements((2 * N * rows * cols) as u64));
                for (name, op) in [("nt", Op::Nt), ("nn", Op::Nn)] {
                    let len = match op {
                        Op::Nt => matmul::nt_scratch(Shape { ty, rows, cols, n: N, rank: 0 }, threads, isa, precision),
                        Op::Nn => matmul::nn_scratch(Shape { ty, rows, cols, n: N, rank: 0 }, threads, isa, precision),
                    };
                    let mut scratch = vec![0.0; len];
                    let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
                    check(op, &mut ctx, w, &x, &mut y);
                    group.bench_function(format!("{name} {} {rows}x{cols}", ty.name()), |b| {
                        b.iter(|| run(op, &mut ctx, w, black_box(&x), N, black_box(&mut y)));
                    });
                }
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = products
}
criterion_main!(benches);
