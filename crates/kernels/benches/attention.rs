//! Rates of attention (an element is a floating-point operation, so `Gelem/s` reads GFLOP/s), forward and backward, for each
//! instruction set of this processor, on one thread and on all. Operations are those of the products over keys that a query sees: two
//! forward and five backward. Timed only after it matched the reference.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pocketune_kernels::attention::{self, Heads, Segment, Window};
use pocketune_kernels::matmul::{Ctx, Precision};
use pocketune_kernels::{Isa, Pool, reference};

const ISAS: [Isa; 3] = [Isa::Avx2, Isa::Avx512, Isa::Amx];
/// SmolLM2-135M, Qwen2.5-0.5B and Qwen2.5-1.5B.
const HEADS: [(usize, usize, usize); 3] = [(9, 3, 64), (14, 2, 64), (12, 2, 128)];
const LENGTHS: [usize; 2] = [256, 1024];
/// Tokens that are checked: past a tile.
const CHECKED: usize = 67;

fn floats(len: usize, shift: u32) -> Vec<f32> {
    (0..len as u32).map(|i| ((i + shift).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// What inputs are rounded to: bf16 where the processor multiplies it.
fn precision(isa: Isa) -> Precision {
    if isa == Isa::Amx { Precision::Bf16 } else { Precision::F32 }
}

/// An attention of `n` tokens with all that it reads and writes.
struct Case {
    heads: Heads,
    segments: [Segment; 1],
    read: [Vec<f32>; 4],
    out: Vec<f32>,
    lse: Vec<f32>,
    gradients: [Vec<f32>; 3],
    scratch: Vec<f32>,
}

impl Case {
    fn new(heads: Heads, n: usize, threads: usize) -> Self {
        let (q, kv) = (n * heads.queries * heads.d, n * heads.kv * heads.d);
        let scratch = |isa| attention::backward_scratch(heads, n, n, threads, isa, precision(isa));
        Self {
            heads,
            segments: [Segment { q_start: 0, q_len: n, k_start: 0, k_len: n }],
            read: [floats(q, 1), floats(kv, 2), floats(kv, 3), floats(q, 4)],
            out: vec![0.0; q],
            lse: vec![0.0; n * heads.queries],
            gradients: [vec![0.0; q], vec![0.0; kv], vec![0.0; kv]],
            scratch: vec![0.0; ISAS.map(scratch).into_iter().max().unwrap_or(0)],
        }
    }

    fn forward(&mut self, isa: Isa, pool: &Pool) {
        let Self { heads, segments, read: [q, k, v, _], out, lse, scratch, .. } = self;
        let mut ctx = Ctx { pool, isa, precision: precision(isa), scratch };
        attention::forward(&mut ctx, *heads, segments, (black_box(q), k, v), (out, lse));
    }

    fn backward(&mut self, isa: Isa, pool: &Pool) {
        let Self { heads, segments, read: [q, k, v, go], out, lse, gradients: [gq, gk, gv], scratch } = self;
        let mut ctx = Ctx { pool, isa, precision: precision(isa), scratch };
        attention::backward(&mut ctx, *heads, segments, (black_box(q), k, v), (out, lse, go), (gq, gk, gv));
    }

    /// Panics unless everything is as plain loops have it, within what products of rounded inputs may differ by.
    fn check(&mut self, isa: Isa, pool: &Pool) {
        self.forward(isa, pool);
        self.backward(isa, pool);
        let [q, k, v, go] = &self.read;
        let (out, lse) = reference::attention(q, k, v, self.heads, &self.segments);
        let (gq, gk, gv) = reference::attention_backward(q, k, v, &out, &lse, go, self.heads, &self.segments);
        let [got_q, got_k, got_v] = &self.gradients;
        for (got, wanted) in [(&self.out, &out), (got_q, &gq), (got_k, &gk), (got_v, &gv)] {
            let largest = wanted.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let close = |(got, wanted): (&f32, &f32)| (got - wanted).abs() <= 2e-2 * largest;
            assert!(got.iter().zip(wanted).all(close), "{} differs from the reference", isa.name());
        }
    }
}

fn attentions(criterion: &mut Criterion) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for isa in ISAS.into_iter().filter(|isa| isa.available()) {
        for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
            let pool = Pool::new(threads).expect("threads start");
            let mut group = criterion.benchmark_group(format!("{} x{threads}", isa.name()));
            for ((queries, kv, d), n) in HEADS.into_iter().flat_map(|heads| LENGTHS.map(|n| (heads, n))) {
                let heads = Heads { queries, kv, d, scale: 1.0 / (d as f32).sqrt(), window: Window::Past };
                Case::new(heads, CHECKED, threads).check(isa, &pool);
                let mut case = Case::new(heads, n, threads);
                let pairs = (n * (n + 1) / 2 * queries * d) as u64;
                group.throughput(Throughput::Elements(4 * pairs));
                group.bench_function(format!("forward {queries}/{kv}x{d} n {n}"), |b| {
                    b.iter(|| case.forward(isa, &pool));
                });
                group.throughput(Throughput::Elements(10 * pairs));
                group.bench_function(format!("backward {queries}/{kv}x{d} n {n}"), |b| {
                    b.iter(|| case.backward(isa, &pool));
                });
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = attentions
}
criterion_main!(benches);
