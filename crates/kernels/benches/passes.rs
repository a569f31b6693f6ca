//! Everything of a step that is no matrix product, in bytes read and written a second: dequantisation (bytes of blocks), norm, rotation,
//! gated product (in f32 and bf16), cross-entropy and update, for each instruction set of this processor, on one thread and on all. Each is timed only
//! after it matched its reference.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use pocketune_kernels::activation::Act;
use pocketune_kernels::rope::{self, Pairs, Rotation};
use pocketune_kernels::update::{AdamW, Sgd};
use pocketune_kernels::{BlockType, Isa, Pool, Values, ValuesMut};
use pocketune_kernels::{blocks, cross_entropy, dequant, gated, norm, reference, update};

const ISAS: [Isa; 3] = [Isa::Avx2, Isa::Avx512, Isa::Amx];
/// Tokens, width of the residual stream and of the feed-forward, elements of a head, and entries of a vocabulary: of Qwen2.5-0.5B but
/// for the last, which is SmolLM2's.
const N: usize = 256;
const WIDTH: usize = 896;
const FFN: usize = 4864;
const D: usize = 64;
const VOCAB: usize = cross_entropy::STRIP;
/// Rows that are checked.
const ROWS: usize = 3;

fn floats(len: usize) -> Vec<f32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Panics unless the numbers agree within `tolerance` of the largest.
fn close(what: &str, isa: Isa, got: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(got.len(), wanted.len());
    let largest = wanted.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let agree = |(got, wanted): (&f32, &f32)| (got - wanted).abs() <= tolerance * largest;
    assert!(got.iter().zip(wanted).all(agree), "{what} on {} differs from the reference", isa.name());
}

/// What is being measured, and on what.
struct On<'a, 'b> {
    group: &'a mut BenchmarkGroup<'b, WallTime>,
    isa: Isa,
    pool: &'a Pool,
}

impl On<'_, '_> {
    fn time(&mut self, name: &str, bytes: usize, mut run: impl FnMut()) {
        self.group.throughput(Throughput::Bytes(bytes as u64));
        self.group.bench_function(name, |b| b.iter(&mut run));
    }

    fn dequantise(&mut self) {
        for ty in BlockType::ALL {
            let (isa, len) = (self.isa, 1 << 20);
            let bytes = len / ty.block_len() * ty.block_bytes();
            // No half float or float among these bytes is large.
            let data: Vec<u8> =
                (0..bytes as u32).map(|i| ((i.wrapping_mul(2_654_435_761) >> 16) % 0x3c) as u8).collect();
            let (mut got, mut wanted) = (vec![f32::NAN; len], vec![0.0; len]);
            dequant::dequantize_row(isa, ty, &data, &mut got);
            blocks::dequantize(ty, &data, &mut wanted);
            close(ty.name(), isa, &got, &wanted, 0.0);
            let (row, row_bytes) = (1024, bytes / (len / 1024));
            let mut out = vec![0.0; row];
            // A row at a time into the cache, on one thread: what a product does.
            self.time(&format!("dequantise {}", ty.name()), bytes, || {
                data.chunks_exact(row_bytes).for_each(|data| dequant::dequantize_row(isa, ty, data, &mut out));
                black_box(&out);
            });
        }
    }

    fn norms(&mut self) {
        let (isa, pool) = (self.isa, self.pool);
        let (x, w, gy, mut y) = (floats(N * WIDTH), floats(WIDTH), floats(N * WIDTH + 5), vec![0.0; N * WIDTH]);
        let gy = &gy[5..];
        norm::forward(isa, pool, &x, &w, 1e-5, &mut y);
        close("norm", isa, &y, &reference::norm(&x, &w, 1e-5), 1e-5);
        self.time("norm", 8 * x.len(), || norm::forward(isa, pool, black_box(&x), &w, 1e-5, &mut y));
        norm::backward(isa, pool, &x, &w, 1e-5, gy, &mut y, false);
        close("norm backward", isa, &y, &reference::norm_backward(&x, &w, 1e-5, gy), 1e-4);
        self.time("norm backward", 12 * x.len(), || {
            norm::backward(isa, pool, black_box(&x), &w, 1e-5, gy, &mut y, false)
        });
    }

    fn rotations(&mut self) {
        let (isa, pool) = (self.isa, self.pool);
        let positions: Vec<u32> = (0..N as u32).collect();
        let pairs: Vec<(f32, f32)> = (0..N * D / 2).map(|i| ((i as f32).cos(), (i as f32).sin())).collect();
        let rows = pairs.chunks(D / 2);
        let table: Vec<f32> = rows.flat_map(|row| row.iter().map(|p| p.0).chain(row.iter().map(|p| p.1))).collect();
        let x = floats(N * WIDTH);
        for (name, layout) in [("rope halves", Pairs::Halves), ("rope interleaved", Pairs::Interleaved)] {
            let mut y = x.clone();
            let turn = Rotation { d: D, table: &table, pairs: layout, inverse: false };
            rope::rotate(isa, pool, ValuesMut::F32(&mut y), WIDTH, turn, &positions);
            let wanted = reference::rope(&x, &pairs, &positions, D, layout == Pairs::Interleaved, false);
            close(name, self.isa, &y, &wanted, 1e-6);
            self.time(name, 8 * x.len(), || {
                rope::rotate(isa, pool, ValuesMut::F32(black_box(&mut y)), WIDTH, turn, &positions);
            });
            let mut y: Vec<bf16> = x.iter().map(|&x| bf16::from_f32(x)).collect();
            rope::rotate(isa, pool, ValuesMut::Bf16(&mut y), WIDTH, turn, &positions);
            let halves: Vec<f32> = y.iter().map(|y| y.to_f32()).collect();
            close(&format!("{name} in bf16"), self.isa, &halves, &wanted, 2e-2);
            self.time(&format!("{name} in bf16"), 4 * x.len(), || {
                rope::rotate(isa, pool, ValuesMut::Bf16(black_box(&mut y)), WIDTH, turn, &positions);
            });
        }
    }

    fn gated(&mut self) {
        let (isa, pool, len) = (self.isa, self.pool, N * FFN);
        let (gate, up, g) = (floats(len), floats(len + 3)[3..].to_vec(), floats(len + 7)[7..].to_vec());
        for (name, act) in [("silu", Act::Silu), ("gelu", Act::GeluTanh)] {
            let mut out = vec![0.0; len];
            gated::forward(isa, pool, act, &gate, &up, &mut out);
            close(name, isa, &out, &reference::gated(act, &gate, &up), 1e-5);
            self.time(&format!("gated {name}"), 12 * len, || {
                gated::forward(isa, pool, act, black_box(&gate), &up, &mut out);
            });
            let (mut ggate, mut gup) = (gate.clone(), up.clone());
            gated::backward(isa, pool, act, None, &mut ggate, &mut gup, &g);
            let (wanted_gate, wanted_up) = reference::gated_backward(act, &gate, &up, &g);
            close(name, isa, &ggate, &wanted_gate, 1e-5);
            close(name, isa, &gup, &wanted_up, 1e-5);
            // In place, so each run begins with fresh values: what is left after many is too small to be a normal number.
            let fresh = || (gate.clone(), up.clone());
            self.group.throughput(Throughput::Bytes(20 * len as u64));
            self.group.bench_function(format!("gated {name} backward"), |b| {
                let run = |(gate, up): &mut (Vec<f32>, Vec<f32>)| {
                    gated::backward(isa, pool, act, None, gate, up, black_box(&g))
                };
                b.iter_batched_ref(fresh, run, BatchSize::PerIteration);
            });
        }
    }

    /// Norms and gated products of values in bf16.
    fn halves(&mut self) {
        let (isa, pool, len) = (self.isa, self.pool, N * FFN);
        let widened = |x: &[bf16]| x.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
        let (x, w) = (floats(N * WIDTH), floats(WIDTH));
        let mut y = vec![bf16::ZERO; x.len()];
        norm::forward_values(isa, pool, &x, &w, 1e-5, ValuesMut::Bf16(&mut y));
        close("norm bf16", isa, &widened(&y), &reference::norm(&x, &w, 1e-5), 4e-3);
        self.time("norm bf16", 6 * x.len(), || {
            norm::forward_values(isa, pool, black_box(&x), &w, 1e-5, ValuesMut::Bf16(&mut y));
        });
        let [gate, up, g] =
            [0, 3, 7].map(|from| floats(len + from)[from..].iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());
        let mut out = vec![bf16::ZERO; len];
        let forward = |out: &mut [bf16]| {
            let values = (Values::Bf16(black_box(&gate)), Values::Bf16(&up));
            gated::forward_values(isa, pool, Act::Silu, values.0, values.1, ValuesMut::Bf16(out));
        };
        forward(&mut out);
        let wanted = reference::gated(Act::Silu, &widened(&gate), &widened(&up));
        close("gated silu bf16", isa, &widened(&out), &wanted, 4e-3);
        self.time("gated silu bf16", 6 * len, || forward(&mut out));
        let backward = |(gate, up): &mut (Vec<bf16>, Vec<bf16>)| {
            let values = (ValuesMut::Bf16(gate), ValuesMut::Bf16(up));
            gated::backward_values(isa, pool, Act::Silu, None, values.0, values.1, Values::Bf16(black_box(&g)));
        };
        let fresh = || (gate.clone(), up.clone());
        let mut gradients = fresh();
        backward(&mut gradients);
        let wanted = reference::gated_backward(Act::Silu, &widened(&gate), &widened(&up), &widened(&g));
        close("gated silu bf16 backward", isa, &widened(&gradients.0), &wanted.0, 4e-3);
        close("gated silu bf16 backward", isa, &widened(&gradients.1), &wanted.1, 4e-3);
        self.group.throughput(Throughput::Bytes(10 * len as u64));
        self.group.bench_function("gated silu bf16 backward", |b| {
            b.iter_batched_ref(fresh, backward, BatchSize::PerIteration);
        });
    }

    fn losses(&mut self) {
        let (isa, pool) = (self.isa, self.pool);
        let labels: Vec<u32> = (0..N as u32).map(|row| row * 191 % VOCAB as u32).collect();
        let logits = floats(N * VOCAB);
        let mut numbers = vec![0.0; 5 * N];
        let mut numbers = numbers.chunks_exact_mut(N);
        let mut part = || numbers.next().expect("five of them");
        let mut state = cross_entropy::State { top: part(), total: part(), shift: part(), label: part(), best: part() };
        state.clear();
        let mut strip = logits.clone();
        cross_entropy::take_in(isa, pool, &mut strip, 0, &labels, &mut state);
        let (wanted, wanted_gradient) = reference::cross_entropy(&logits[..ROWS * VOCAB], &labels[..ROWS]);
        let got: Vec<f32> = (0..ROWS).map(|row| state.loss(row)).collect();
        close("cross-entropy", isa, &got, &wanted, 1e-5);
        let mut gradient = logits.clone();
        cross_entropy::gradient(isa, pool, &mut gradient, 0, &labels, &state, 1.0);
        close("its gradient", isa, &gradient[..ROWS * VOCAB], &wanted_gradient, 1e-4);
        self.time("cross-entropy gradient", 8 * logits.len(), || {
            cross_entropy::gradient(isa, pool, black_box(&mut gradient), 0, &labels, &state, 1.0);
        });
        self.time("cross-entropy", 8 * logits.len(), || {
            state.clear();
            cross_entropy::take_in(isa, pool, black_box(&mut strip), 0, &labels, &mut state);
        });
    }

    fn updates(&mut self) {
        let (isa, pool, len) = (self.isa, self.pool, 1 << 20);
        let (before, g) = (floats(len), floats(len + 9)[9..].to_vec());
        let rule = AdamW { lr: 1e-2, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 3 };
        let (mut p, mut m, mut v) = (before.clone(), vec![0.1; len], vec![0.2; len]);
        update::adamw(isa, pool, rule, &mut p, &g, &mut m, &mut v);
        // The rule as PyTorch states it, in f64.
        let wanted = |(&p, &g): (&f32, &f32)| {
            let (p, g) = (f64::from(p), f64::from(g));
            let (m, v) = (0.9 * 0.1 + 0.1 * g, 0.999 * 0.2 + 0.001 * g * g);
            let (m, v) = (m / (1.0 - 0.9_f64.powi(3)), v / (1.0 - 0.999_f64.powi(3)));
            (p * (1.0 - 1e-2 * 0.01) - 1e-2 * m / (v.sqrt() + 1e-8)) as f32
        };
        close("adamw", isa, &p, &before.iter().zip(&g).map(wanted).collect::<Vec<_>>(), 1e-5);
        self.time("adamw", 28 * len, || update::adamw(isa, pool, rule, &mut p, black_box(&g), &mut m, &mut v));
        let rule = Sgd { lr: 1e-2, weight_decay: 0.1 };
        let mut p = before.clone();
        update::sgd(isa, pool, rule, &mut p, &g);
        let wanted: Vec<f32> = before.iter().zip(&g).map(|(p, g)| p - 1e-2 * (g + 0.1 * p)).collect();
        close("sgd", isa, &p, &wanted, 1e-6);
        self.time("sgd", 12 * len, || update::sgd(isa, pool, rule, &mut p, black_box(&g)));
    }
}

fn passes(criterion: &mut Criterion) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for isa in ISAS.into_iter().filter(|isa| isa.available()) {
        for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
            let pool = Pool::new(threads).expect("threads start");
            let mut group = criterion.benchmark_group(format!("{} x{threads}", isa.name()));
            let mut on = On { group: &mut group, isa, pool: &pool };
            if threads == 1 {
                on.dequantise();
            }
            on.norms();
            on.rotations();
            on.gated();
            on.halves();
            on.losses();
            on.updates();
            group.finish();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
    targets = passes
}
criterion_main!(benches);
