//! Every fast kernel against the scalar reference on awkward sizes, and bit for bit against itself on every instruction set and
//! number of threads.

use half::bf16;
use pocketune_kernels::activation::{self, Act};
use pocketune_kernels::attention::{self, Heads, Segment, Window};
use pocketune_kernels::dropout::{self, Mask};
use pocketune_kernels::levels::Steps;
use pocketune_kernels::matmul::{Ctx, Precision, Weight};
use pocketune_kernels::philox::Philox;
use pocketune_kernels::rope::Rotation;
use pocketune_kernels::{
    BlockType, Isa, Pool, Values, ValuesMut, blocks, cross_entropy, dora, elementwise, embed, gated, layer_norm,
    levels, norm, reference, rope, shared_norm, update,
};

fn random(stream: u64, len: usize) -> Vec<f32> {
    let numbers = Philox::new(11, stream);
    (0..len as u64).map(|i| numbers.uniform(i) * 4.0 - 2.0).collect()
}

fn close(name: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{name}");
    let scale = want.iter().fold(1.0_f32, |a, b| a.max(b.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * scale, "{name}[{i}]: {got} instead of {want}");
    }
}

/// Runs `run` on every instruction set of this machine with 1, 2 and 4 threads: the bits must agree. Returns the result.
fn same_bits(name: &str, run: impl Fn(Isa, &Pool) -> Vec<f32>) -> Vec<f32> {
    let first = run(Isa::Scalar, &Pool::new(1).unwrap());
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.available()) {
        for threads in [1, 2, 4] {
            let got = run(isa, &Pool::new(threads).unwrap());
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&first), bits(&got), "{name}: {isa:?} with {threads} threads differs from scalar");
        }
    }
    first
}

#[test]
fn sums_and_copies_of_whole_values() {
    for len in [0, 1, 16, 17, 8191, 8209, 20_011] {
        let (a, b) = (random(1, len), random(2, len));
        let sum = same_bits("add", |isa, pool| {
            let mut sum = a.clone();
            elementwise::add(isa, pool, &mut sum, &b);
            sum
        });
        assert!(sum.iter().zip(a.iter().zip(&b)).all(|(sum, (a, b))| *sum == a + b), "{len} sums");
        let copy = same_bits("copy", |_, pool| {
            let mut to = vec![f32::NAN; len];
            elementwise::copy(pool, &mut to, &a);
            to
        });
        assert_eq!(copy, a, "{len} copies");
    }
}

#[test]
fn norm_matches_the_reference() {
    for (rows, width) in [(0, 5), (1, 1), (3, 17), (70, 64), (33, 576)] {
        let (x, w, gy) = (random(1, rows * width), random(2, width), random(3, rows * width));
        let y = same_bits("norm", |isa, pool| {
            let mut y = vec![f32::NAN; x.len()];
            norm::forward(isa, pool, &x, &w, 1e-5, &mut y);
            y
        });
        close("norm", &y, &reference::norm(&x, &w, 1e-5), 1e-5);
        let gx = same_bits("norm backward", |isa, pool| {
            let mut gx = vec![f32::NAN; x.len()];
            norm::backward(isa, pool, &x, &w, 1e-5, &gy, &mut gx, false);
            gx
        });
        let want = reference::norm_backward(&x, &w, 1e-5, &gy);
        close("norm backward", &gx, &want, 1e-4);
        let mut sum = vec![1.0; x.len()];
        norm::backward(Isa::best(), &Pool::new(2).unwrap(), &x, &w, 1e-5, &gy, &mut sum, true);
        assert!(sum.iter().zip(&gx).all(|(sum, gx)| *sum == 1.0 + gx));
    }
}

#[test]
fn layer_norm_matches_the_reference() {
    for (rows, width) in [(0, 5), (1, 1), (3, 17), (70, 64), (33, 576)] {
        let (x, w, b, gy) = (random(1, rows * width), random(2, width), random(4, width), random(3, rows * width));
        let y = same_bits("layer norm", |isa, pool| {
            let mut y = vec![f32::NAN; x.len()];
            layer_norm::forward(isa, pool, &x, &w, &b, 1e-5, &mut y);
            y
        });
        close("layer norm", &y, &reference::layer_norm(&x, &w, &b, 1e-5), 1e-5);
        let gx = same_bits("layer norm backward", |isa, pool| {
            let mut gx = vec![f32::NAN; x.len()];
            layer_norm::backward(isa, pool, &x, &w, 1e-5, &gy, &mut gx, false);
            gx
        });
        close("layer norm backward", &gx, &reference::layer_norm_backward(&x, &w, 1e-5, &gy), 1e-4);
        let mut sum = vec![1.0; x.len()];
        layer_norm::backward(Isa::best(), &Pool::new(2).unwrap(), &x, &w, 1e-5, &gy, &mut sum, true);
        assert!(sum.iter().zip(&gx).all(|(sum, gx)| *sum == 1.0 + gx));
    }
}

#[test]
fn rope_matches_the_reference_and_its_inverse_undoes_it() {
    for (d, rows) in [(6, 19), (64, 21)] {
        let positions: Vec<u32> = (0..rows as u32).map(|i| i % 7).collect();
        let pairs: Vec<(f32, f32)> = (0..7 * d / 2).map(|i| ((i as f32).cos(), (i as f32).sin())).collect();
        let table: Vec<f32> =
            pairs.chunks(d / 2).flat_map(|row| row.iter().map(|p| p.0).chain(row.iter().map(|p| p.1))).collect();
        let x = random(1, rows * 2 * d);
        for layout in [rope::Pairs::Halves, rope::Pairs::Interleaved] {
            let turn = |inverse| Rotation { d, table: &table, pairs: layout, inverse };
            let rotated = |x: &[f32], inverse| {
                same_bits("rope", |isa, pool| {
                    let mut y = x.to_vec();
                    rope::rotate(isa, pool, ValuesMut::F32(&mut y), 2 * d, turn(inverse), &positions);
                    y
                })
            };
            let y = rotated(&x, false);
            let want = reference::rope(&x, &pairs, &positions, d, layout == rope::Pairs::Interleaved, false);
            close("rope", &y, &want, 1e-6);
            close("rope and back", &rotated(&y, true), &x, 1e-6);
            // In bf16, what comes out is that of rounded values, rounded.
            let rounded = |x: &[f32]| -> Vec<bf16> { x.iter().map(|&x| bf16::from_f32(x)).collect() };
            let floats = |x: &[bf16]| -> Vec<f32> { x.iter().map(|x| x.to_f32()).collect() };
            let halves = same_bits("rope in bf16", |isa, pool| {
                let mut y = rounded(&x);
                rope::rotate(isa, pool, ValuesMut::Bf16(&mut y), 2 * d, turn(false), &positions);
                floats(&y)
            });
            assert_eq!(halves, floats(&rounded(&rotated(&floats(&rounded(&x)), false))));
        }
    }
}

/// Records one after another, and how many rows they have.
fn whole(lens: &[usize]) -> (Vec<Segment>, usize) {
    let mut start = 0;
    let segment = |&len: &usize| {
        start += len;
        Segment { q_start: start - len, q_len: len, k_start: start - len, k_len: len }
    };
    (lens.iter().map(segment).collect(), lens.iter().sum())
}

#[test]
fn attention_on_amx_is_that_of_rounded_inputs() {
    if !Isa::Amx.available() {
        return eprintln!("skipped: this processor has no AMX");
    }
    for lens in [&[1][..], &[2, 0, 3], &[64], &[17, 130], &[200]] {
        for (queries, kv, d, window) in [
            (1, 1, 1, Window::Past),
            (4, 2, 16, Window::Past),
            (4, 2, 16, Window::Whole),
            (3, 3, 5, Window::Last(1)),
            (7, 1, 64, Window::Last(70)),
            (2, 1, 80, Window::Past),
            (2, 1, 80, Window::Whole),
            (1, 1, 256, Window::Past),
        ] {
            let heads = Heads { queries, kv, d, scale: 1.0 / (d as f32).sqrt(), window };
            let (segments, n) = whole(lens);
            let rounded = |seed, len| -> Vec<f32> {
                random(seed, len).iter().map(|x| f32::from_bits((x.to_bits() + 0x8000) & 0xffff_0000)).collect()
            };
            let (q, k, v) = (rounded(1, n * queries * d), rounded(2, n * kv * d), rounded(3, n * kv * d));
            let go = rounded(4, q.len());
            let (out, lse) = reference::attention(&q, &k, &v, heads, &segments);
            let (gq, gk, gv) = reference::attention_backward(&q, &k, &v, &out, &lse, &go, heads, &segments);
            let run = |threads: usize| {
                let (pool, isa, precision) = (Pool::new(threads).unwrap(), Isa::Amx, Precision::Bf16);
                let mut scratch = vec![f32::NAN; attention::backward_scratch(heads, n, n, threads, isa, precision)];
                let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
                let mut got = [q.len(), n * queries, q.len(), k.len(), v.len()].map(|len| vec![f32::NAN; len]);
                let [got_out, got_lse, gq, gk, gv] = &mut got;
                attention::forward(&mut ctx, heads, &segments, (&q, &k, &v), (got_out, got_lse));
                attention::backward(&mut ctx, heads, &segments, (&q, &k, &v), (&out, &lse, &go), (gq, gk, gv));
                got
            };
            let got = run(1);
            // The same values in bf16: the same gradients, and the output rounded.
            let halves = |x: &[f32]| -> Vec<bf16> { x.iter().map(|&x| bf16::from_f32(x)).collect() };
            let [q_half, k_half, v_half, go_half, out_half] = [&q, &k, &v, &go, &out].map(|x| halves(x));
            let floats: Vec<f32> = out_half.iter().map(|x| x.to_f32()).collect();
            for threads in [1, 2] {
                let (pool, isa, precision) = (Pool::new(threads).unwrap(), Isa::Amx, Precision::Bf16);
                let mut scratch = vec![f32::NAN; attention::backward_scratch(heads, n, n, threads, isa, precision)];
                let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
                let read = [&q_half, &k_half, &v_half].map(|x| Values::Bf16(x));
                let (mut rounded, mut got_lse) = (vec![bf16::NAN; q.len()], vec![f32::NAN; n * queries]);
                let to = (ValuesMut::Bf16(&mut rounded), &mut got_lse[..]);
                attention::forward_values(&mut ctx, heads, &segments, read, to);
                // One query alone is computed in f32 where its values are.
                if !lens.contains(&1) {
                    assert_eq!((rounded, got_lse), (halves(&got[0]), got[1].clone()), "{heads:?} {lens:?}");
                }
                let mut ours = [q.len(), k.len(), v.len()].map(|len| vec![f32::NAN; len]);
                let mut wanted = ours.clone();
                let [gq, gk, gv] = &mut ours;
                let given = (Values::Bf16(&out_half), &lse[..], Values::Bf16(&go_half));
                attention::backward_values(&mut ctx, heads, &segments, read, given, (gq, gk, gv));
                let [gq, gk, gv] = &mut wanted;
                attention::backward(&mut ctx, heads, &segments, (&q, &k, &v), (&floats, &lse, &go), (gq, gk, gv));
                assert_eq!(ours, wanted, "gradients of {threads} threads in bf16, {heads:?} {lens:?}");
            }
            // Whole key heads, halves of them, and tiles.
            for threads in [2, 3, 6] {
                assert_eq!(got, run(threads), "{threads} threads changed a bit: {heads:?} {lens:?}");
            }
            // Probabilities and their gradients are rounded on the way. The error of a sum goes with the size of its terms, not with
            // the sum's; a row that sees one key has a gradient of zero, by cancelling.
            let want = [("out", &out), ("lse", &lse), ("gq", &gq), ("gk", &gk), ("gv", &gv)];
            for (got, (name, want)) in got.iter().zip(want) {
                let size = want.iter().fold(1e-3_f32, |size, x| size.max(x.abs()));
                for (got, want) in got.iter().zip(want) {
                    assert!(
                        (got - want).abs() <= 2e-2 * size,
                        "{name} {got} for {want}, of {size}: {heads:?} {lens:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn attention_matches_the_reference() {
    for lens in [&[1][..], &[5, 0, 3], &[64], &[65, 130], &[200]] {
        for (queries, kv, d, window) in [
            (1, 1, 1, Window::Past),
            (4, 2, 16, Window::Past),
            (4, 2, 16, Window::Whole),
            (3, 3, 5, Window::Last(1)),
            (7, 1, 64, Window::Last(70)),
            (7, 1, 64, Window::Whole),
            (2, 2, 32, Window::Last(64)),
        ] {
            let heads = Heads { queries, kv, d, scale: 0.3, window };
            let (segments, n) = whole(lens);
            let (q, k, v) = (random(1, n * queries * d), random(2, n * kv * d), random(3, n * kv * d));
            let go = random(4, q.len());
            let (out, lse) = reference::attention(&q, &k, &v, heads, &segments);
            let got = same_bits("attention", |isa, pool| {
                let (mut out, mut lse) = (vec![f32::NAN; q.len()], vec![f32::NAN; n * queries]);
                let mut scratch = vec![f32::NAN; attention::scratch(heads, n, pool.threads(), isa, Precision::F32)];
                let mut ctx = Ctx { pool, isa, precision: Precision::F32, scratch: &mut scratch };
                attention::forward(&mut ctx, heads, &segments, (&q, &k, &v), (&mut out, &mut lse));
                out.extend(lse);
                out
            });
            close("out", &got[..q.len()], &out, 1e-5);
            close("lse", &got[q.len()..], &lse, 1e-5);
            let (gq, gk, gv) = reference::attention_backward(&q, &k, &v, &out, &lse, &go, heads, &segments);
            let got = same_bits("attention backward", |isa, pool| {
                let (mut gq, mut gk, mut gv) =
                    (vec![f32::NAN; q.len()], vec![f32::NAN; k.len()], vec![f32::NAN; v.len()]);
                let len = attention::backward_scratch(heads, n, n, pool.threads(), isa, Precision::F32);
                let mut scratch = vec![f32::NAN; len];
                let mut ctx = Ctx { pool, isa, precision: Precision::F32, scratch: &mut scratch };
                let to = (&mut gq[..], &mut gk[..], &mut gv[..]);
                attention::backward(&mut ctx, heads, &segments, (&q, &k, &v), (&out, &lse, &go), to);
                [gq, gk, gv].concat()
            });
            close("gq", &got[..q.len()], &gq, 1e-4);
            close("gk", &got[q.len()..q.len() + k.len()], &gk, 1e-4);
            close("gv", &got[q.len() + k.len()..], &gv, 1e-4);
        }
    }
}

/// Highest scores that rise from tile to tile of keys by less than what sums are shrunk for, by about as much, by more, and by so much that what was
/// summed before vanishes; and that fall.
#[test]
fn attention_of_rising_scores_matches_the_reference() {
    let (n, d, window) = (300, 16, Window::Past);
    let heads = Heads { queries: 2, kv: 1, d, scale: 0.25, window };
    let (segments, _) = whole(&[n]);
    for rise in [0.5, 5.0, 8.0, 9.0, 40.0, 300.0, -9.0, -300.0_f32] {
        // The first element carries the rise; powers of two and small whole numbers are what they are in bf16, too.
        let mut q = random(1, 2 * n * d);
        q.chunks_exact_mut(d).for_each(|row| row[0] = 4.0);
        let mut k = random(2, n * d);
        for (at, row) in k.chunks_exact_mut(d).enumerate() {
            row[0] = (at / 64) as f32 * rise;
        }
        let v = random(3, n * d);
        let rounded = |x: &[f32]| -> Vec<f32> { x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect() };
        let (q, k, v) = (rounded(&q), rounded(&k), rounded(&v));
        let (out, lse) = reference::attention(&q, &k, &v, heads, &segments);
        let run = |isa, pool: &Pool, precision| {
            let (mut out, mut lse) = (vec![f32::NAN; q.len()], vec![f32::NAN; n * 2]);
            let mut scratch = vec![f32::NAN; attention::scratch(heads, n, pool.threads(), isa, precision)];
            let mut ctx = Ctx { pool, isa, precision, scratch: &mut scratch };
            attention::forward(&mut ctx, heads, &segments, (&q, &k, &v), (&mut out, &mut lse));
            [out, lse].concat()
        };
        let got = same_bits("rising", |isa, pool| run(isa, pool, Precision::F32));
        close("out", &got[..q.len()], &out, 1e-5);
        close("lse", &got[q.len()..], &lse, 1e-5);
        if Isa::Amx.available() {
            let got = run(Isa::Amx, &Pool::new(1).unwrap(), Precision::Bf16);
            close("out in bf16", &got[..q.len()], &out, 1e-2);
            close("lse in bf16", &got[q.len()..], &lse, 1e-5);
        }
    }
}

#[test]
fn what_attention_keeps_of_keys_changes_no_bit() {
    let (isa, precision) = (Isa::best(), Precision::Bf16);
    // The second segment has keys before its queries, so that tiles of queries see parts of a tile of keys.
    let segments = [
        Segment { q_start: 0, q_len: 140, k_start: 0, k_len: 140 },
        Segment { q_start: 140, q_len: 130, k_start: 140, k_len: 171 },
    ];
    let (rows, keys) = (270, 311);
    for window in [Window::Past, Window::Last(70), Window::Whole] {
        let heads = Heads { queries: 6, kv: 3, d: 40, scale: 0.2, window };
        let (q, go) = (random(1, rows * 240), random(2, rows * 240));
        let (k, v) = (random(3, keys * 120), random(4, keys * 120));
        let run = |room: usize, threads: usize| {
            let pool = Pool::new(threads).unwrap();
            let mut scratch = vec![f32::NAN; attention::backward_scratch(heads, rows, room, threads, isa, precision)];
            let (mut out, mut lse) = (vec![f32::NAN; q.len()], vec![f32::NAN; rows * 6]);
            let (mut gq, mut gk, mut gv) = (vec![f32::NAN; q.len()], vec![f32::NAN; k.len()], vec![f32::NAN; v.len()]);
            let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
            // Twice: what the first has left in its memory is none of the second's business.
            for _ in 0..2 {
                attention::forward(&mut ctx, heads, &segments, (&q, &k, &v), (&mut out, &mut lse));
                let to = (&mut gq[..], &mut gk[..], &mut gv[..]);
                attention::backward(&mut ctx, heads, &segments, (&q, &k, &v), (&out, &lse, &go), to);
            }
            [out, lse, gq, gk, gv].concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let nothing = run(0, 1);
        for room in [0, 64, 140, 171, 1000] {
            // Of six key heads, two are over where four threads have one each.
            for threads in [2, 4] {
                assert!(run(room, threads) == nothing, "room for {room} keys, {window:?}, {threads} threads");
            }
        }
    }
}

#[test]
fn attention_over_a_cache_equals_attention_over_the_whole() {
    let heads = Heads { queries: 4, kv: 2, d: 16, scale: 0.25, window: Window::Last(40) };
    let n = 90;
    let (q, k, v) = (random(1, n * 64), random(2, n * 32), random(3, n * 32));
    let pool = Pool::new(2).unwrap();
    let (isa, precision) = (Isa::best(), Precision::F32);
    let mut scratch = vec![0.0; attention::scratch(heads, n, 2, isa, precision)];
    let mut run = |segment: Segment, q: &[f32]| {
        let (mut out, mut lse) = (vec![0.0; q.len()], vec![0.0; q.len() / 16]);
        let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
        attention::forward(&mut ctx, heads, &[segment], (q, &k, &v), (&mut out, &mut lse));
        out
    };
    let whole = run(Segment { q_start: 0, q_len: n, k_start: 0, k_len: n }, &q);
    let last = run(Segment { q_start: 0, q_len: 3, k_start: 0, k_len: n }, &q[(n - 3) * 64..]);
    close("last rows", &last, &whole[(n - 3) * 64..], 1e-6);
    let last = run(Segment { q_start: 0, q_len: 1, k_start: 0, k_len: n }, &q[(n - 1) * 64..]);
    close("last row", &last, &whole[(n - 1) * 64..], 1e-6);
}

#[test]
fn one_query_of_attention_that_is_not_causal_sees_every_key() {
    let heads = Heads { queries: 4, kv: 2, d: 16, scale: 0.25, window: Window::Whole };
    let (q, k, v) = (random(1, 64), random(2, 90 * 32), random(3, 90 * 32));
    let segment = [Segment { q_start: 0, q_len: 1, k_start: 0, k_len: 90 }];
    let (want, want_lse) = reference::attention(&q, &k, &v, heads, &segment);
    let got = same_bits("one query", |isa, pool| {
        let (mut out, mut lse) = (vec![f32::NAN; 64], vec![f32::NAN; 4]);
        let mut scratch = vec![f32::NAN; attention::scratch(heads, 90, pool.threads(), isa, Precision::F32)];
        let mut ctx = Ctx { pool, isa, precision: Precision::F32, scratch: &mut scratch };
        attention::forward(&mut ctx, heads, &segment, (&q, &k, &v), (&mut out, &mut lse));
        [out, lse].concat()
    });
    close("out", &got[..64], &want, 1e-5);
    close("lse", &got[64..], &want_lse, 1e-5);
}

#[test]
fn norms_in_two_parts_have_the_values_of_the_whole_and_its_derivative() {
    for (rows, width) in [(0, 5), (1, 1), (3, 17), (70, 64), (33, 576)] {
        let (x, mut w, b) = (random(1, rows * width), random(2, width), random(4, width));
        // Where a weight is zero the output says nothing of what was normalised.
        w[width / 2] = 0.0;
        let gy = random(3, rows * width);
        for bias in [None, Some(&b[..])] {
            let centred = bias.is_some();
            let y = same_bits("norm in two parts", |isa, pool| {
                let (mut n, mut rstd) = (vec![f32::NAN; x.len()], vec![f32::NAN; rows]);
                let mut y = n.clone();
                shared_norm::normalise(isa, pool, centred, width, 1e-5, &x, &mut n, &mut rstd);
                shared_norm::affine(isa, pool, &n, &w, bias, &mut y);
                y
            });
            let (isa, pool) = (Isa::best(), Pool::new(2).unwrap());
            let (mut n, mut rstd, mut whole) = (vec![0.0; x.len()], vec![0.0; rows], vec![0.0; x.len()]);
            match bias {
                None => norm::forward(isa, &pool, &x, &w, 1e-5, &mut whole),
                Some(b) => layer_norm::forward(isa, &pool, &x, &w, b, 1e-5, &mut whole),
            }
            assert_eq!(y, whole);
            shared_norm::normalise(isa, &pool, centred, width, 1e-5, &x, &mut n, &mut rstd);
            let gx = same_bits("norm from its output", |isa, pool| {
                let mut gx = vec![f32::NAN; x.len()];
                shared_norm::backward(isa, pool, centred, &n, &rstd, &w, &gy, &mut gx, false);
                gx
            });
            let want = match bias {
                None => reference::norm_backward(&x, &w, 1e-5, &gy),
                Some(_) => reference::layer_norm_backward(&x, &w, 1e-5, &gy),
            };
            close("norm from its output", &gx, &want, 1e-4);
            let mut sum = vec![1.0; x.len()];
            shared_norm::backward(isa, &pool, centred, &n, &rstd, &w, &gy, &mut sum, true);
            assert!(sum.iter().zip(&gx).all(|(sum, gx)| *sum == 1.0 + gx));
        }
    }
}

#[test]
fn activation_matches_the_reference() {
    // Where the curve of a tanh is flat its slope is a difference of ones, and not that exact.
    for (act, size) in [(Act::Silu, 4.0), (Act::GeluTanh, 1.0), (Act::Gelu, 4.0), (Act::Relu, 4.0), (Act::Tanh, 1.0)] {
        for len in [0, 1, 31, 8193] {
            let (x, g): (Vec<f32>, _) = (random(1, len).iter().map(|x| size * x).collect(), random(2, len));
            let y = same_bits("activation", |isa, pool| {
                let mut y = vec![f32::NAN; len];
                activation::forward(isa, pool, act, &x, &mut y);
                y
            });
            close("activation", &y, &reference::act(act, &x), 1e-6);
            let in_place = same_bits("activation in place", |isa, pool| {
                let mut x = x.clone();
                activation::in_place(isa, pool, act, &mut x);
                x
            });
            assert_eq!(in_place, y);
            let gx = same_bits("activation backward", |isa, pool| {
                let mut x = x.clone();
                activation::backward(isa, pool, act, &mut x, &g);
                x
            });
            close("gx", &gx, &reference::act_backward(act, &x, &g), 1e-6);
        }
    }
}

#[test]
fn the_gradient_of_relu_can_be_told_from_its_value() {
    let (x, g) = ([-1.0, -0.0, 0.0, 1e-30, 2.0], [3.0; 5]);
    let (isa, pool) = (Isa::best(), Pool::new(1).unwrap());
    let (mut by_input, mut by_value) = (x, [f32::NAN; 5]);
    activation::forward(isa, &pool, Act::Relu, &x, &mut by_value);
    activation::backward(isa, &pool, Act::Relu, &mut by_input, &g);
    activation::backward(isa, &pool, Act::Relu, &mut by_value, &g);
    assert_eq!((by_input, by_value), ([0.0, 0.0, 0.0, 3.0, 3.0], [0.0, 0.0, 0.0, 3.0, 3.0]));
}

/// The step function as its paper writes it: `a1` from the first step on, `a2` more from the second, and `a3` from the third.
fn step_slope(act: Act, x: f32) -> f32 {
    let (a, c) = match act {
        Act::Silu => (
            [-0.04060357190528599, 1.080925428529668, -0.040321856624382146],
            [-6.3050461001646445, -0.0008684942046214787, 6.325815242089708],
        ),
        _ => (
            [-0.04922261145617846, 1.0979632065417297, -0.048740595085551286],
            [-3.1858810036855245, -0.001178821281161997, 3.190832613414926],
        ),
    };
    (0..3).map(|i| if f64::from(x) > c[i] { a[i] } else { 0.0 }).sum::<f64>() as f32
}

#[test]
fn two_bits_an_element_hold_the_slopes_of_the_paper() {
    for act in [Act::Silu, Act::GeluTanh, Act::Gelu] {
        let steps = Steps::of(act).unwrap();
        for (rows, width) in [(0, 5), (1, 1), (3, 16), (2, 17), (70, 33), (5, 9000)] {
            let x: Vec<f32> = random(1, rows * width).iter().map(|x| 5.0 * x).collect();
            let g = random(2, rows * width);
            let held = rows * levels::words(width);
            assert_eq!(held, rows * width.div_ceil(16));
            let gx = same_bits("levels", |isa, pool| {
                let (mut levels, mut g) = (vec![f32::NAN; held], g.clone());
                levels::pack(isa, pool, steps, width, &x, &mut levels);
                levels::backward(isa, pool, steps, width, &levels, &mut g);
                g
            });
            let want: Vec<f32> = x.iter().zip(&g).map(|(&x, g)| g * step_slope(act, x)).collect();
            close("slopes", &gx, &want, 1e-6);
            let up = random(3, rows * width);
            let both = same_bits("gated by steps", |isa, pool| {
                let (mut gate, mut up) = (x.clone(), up.clone());
                gated::backward(isa, pool, act, Some(steps), &mut gate, &mut up, &g);
                [gate, up].concat()
            });
            let want: Vec<f32> = want.iter().zip(&up).map(|(gx, up)| gx * up).collect();
            close("gate", &both[..x.len()], &want, 1e-6);
            close("up", &both[x.len()..], &reference::gated_backward(act, &x, &up, &g).1, 1e-6);
        }
    }
    assert_eq!(Steps::of(Act::Relu), None);
}

#[test]
fn rows_of_any_type_are_added_to_what_is_there() {
    for ty in [BlockType::F32, BlockType::F16, BlockType::Q4_0, BlockType::Q8_0, BlockType::Q4_K] {
        for len in [ty.block_len(), 3 * 256, 256 + 2 * ty.block_len().min(64)] {
            let Some(bytes) = ty.row_bytes(len) else { continue };
            // Small positive numbers in every field, so that no scale is NaN.
            let row: Vec<u8> = (0..bytes).map(|i| (i * 37 % 41) as u8).collect();
            let mut want = vec![0.0; len];
            blocks::dequantize(ty, &row, &mut want);
            want.iter_mut().zip(random(1, len)).for_each(|(want, x)| *want += x);
            let got = same_bits("added row", |isa, _| {
                let mut out = random(1, len);
                embed::add_row(isa, Weight::new(ty, 1, len, &row), 0, &mut out);
                out
            });
            assert_eq!(got, want, "{} of {len}", ty.name());
        }
    }
}

#[test]
fn gated_activation_matches_the_reference() {
    for act in [Act::Silu, Act::GeluTanh, Act::Gelu, Act::Relu] {
        for len in [0, 1, 31, 8193] {
            let (gate, up, g) = (random(1, len), random(2, len), random(3, len));
            let out = same_bits("gated", |isa, pool| {
                let mut out = vec![f32::NAN; len];
                gated::forward(isa, pool, act, &gate, &up, &mut out);
                out
            });
            close("gated", &out, &reference::gated(act, &gate, &up), 1e-6);
            let both = same_bits("gated backward", |isa, pool| {
                let (mut gate, mut up) = (gate.clone(), up.clone());
                gated::backward(isa, pool, act, None, &mut gate, &mut up, &g);
                [gate, up].concat()
            });
            let (ggate, gup) = reference::gated_backward(act, &gate, &up, &g);
            close("ggate", &both[..len], &ggate, 1e-6);
            close("gup", &both[len..], &gup, 1e-6);
        }
    }
}

/// Losses, hits, gradients, and the softmax as sums over strips make it, of rows of logits.
fn cross_entropy(isa: Isa, pool: &Pool, logits: &[f32], labels: &[u32]) -> Vec<f32> {
    let (rows, vocab) = (labels.len(), logits.len().checked_div(labels.len()).unwrap_or(0));
    let mut slices = vec![f32::NAN; 5 * rows];
    let mut slices = slices.chunks_exact_mut(rows.max(1));
    let mut slice = || slices.next().unwrap_or_default();
    let mut state =
        cross_entropy::State { top: slice(), total: slice(), shift: slice(), label: slice(), best: slice() };
    state.clear();
    let cut = |first: usize| -> Vec<f32> {
        let end = (first + cross_entropy::STRIP).min(vocab);
        logits.chunks(vocab.max(1)).flat_map(|row| row[first..end].to_vec()).collect()
    };
    let put = |to: &mut [f32], first: usize, strip: &[f32]| {
        let len = strip.len() / rows;
        for row in 0..rows {
            to[row * vocab + first..][..len].copy_from_slice(&strip[row * len..][..len]);
        }
    };
    let firsts: Vec<usize> = (0..vocab).step_by(cross_entropy::STRIP).filter(|_| rows > 0).collect();
    let mut sums = vec![0.0; logits.len()];
    for &first in &firsts {
        let mut strip = cut(first);
        cross_entropy::take_in(isa, pool, &mut strip, first, labels, &mut state);
        cross_entropy::rescale(pool, &mut sums, &state);
        put(&mut sums, first, &strip);
    }
    for (row, total) in sums.chunks_exact_mut(vocab.max(1)).zip(&*state.total) {
        row.iter_mut().for_each(|x| *x /= total);
    }
    let mut gradient = vec![0.0; logits.len()];
    for &first in &firsts {
        let mut strip = cut(first);
        cross_entropy::gradient(isa, pool, &mut strip, first, labels, &state, 0.5);
        put(&mut gradient, first, &strip);
    }
    let losses = (0..rows).map(|row| state.loss(row));
    let hits = (0..rows).map(|row| if state.hit(row, labels[row]) { 1.0 } else { 0.0 });
    losses.chain(hits).chain(gradient).chain(sums).collect()
}

#[test]
fn cross_entropy_matches_the_reference() {
    for (rows, vocab) in [(0, 3), (1, 1), (7, 3), (3, 1024), (5, 2500), (4, 7001)] {
        let mut logits = random(1, rows * vocab);
        if rows == 5 {
            // Two equal maxima: the first is the guess.
            (logits[37], logits[2400]) = (9.0, 9.0);
        }
        if rows == 4 {
            // A larger one in every strip, far above what was summed before.
            (logits[1000], logits[3000], logits[5000], logits[7000]) = (10.0, 40.0, 160.0, 159.0);
        }
        let labels: Vec<u32> = (0..rows as u32).map(|i| (i * 37 + 37) % vocab as u32).collect();
        let got = same_bits("cross entropy", |isa, pool| cross_entropy(isa, pool, &logits, &labels));
        let (losses, gradient) = reference::cross_entropy(&logits, &labels);
        close("loss", &got[..rows], &losses, 1e-6);
        let halves: Vec<f32> = gradient.iter().map(|g| g * 0.5).collect();
        close("gradient", &got[2 * rows..][..rows * vocab], &halves, 1e-6);
        let mut softmax = gradient;
        labels.iter().enumerate().for_each(|(row, &label)| softmax[row * vocab + label as usize] += 1.0);
        close("softmax", &got[2 * rows + rows * vocab..], &softmax, 1e-6);
        for row in 0..rows {
            let logits = &logits[row * vocab..][..vocab];
            let best = (0..vocab).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            assert_eq!(got[rows + row] == 1.0, best == labels[row] as usize);
            // A row that is there at once.
            let mut few = logits.to_vec();
            let (loss, hit) = cross_entropy::few(&mut few, labels[row] as usize, 0.5);
            close("the loss of a few", &[loss as f32], &losses[row..=row], 1e-6);
            close("the gradient of a few", &few, &halves[row * vocab..][..vocab], 1e-6);
            assert_eq!(hit, got[rows + row] == 1.0);
        }
    }
}

#[test]
fn rows_with_entries_of_a_4096th_so_far_are_found_on_every_instruction_set() {
    let vocab = cross_entropy::STRIP;
    // Row 0 sums to about 1 and has 0.9 at most; row 1 is far below its sum; row 2 is at the edge; row 3 has a NaN.
    let strip: Vec<f32> = [0.9, 1e-5, 1.0 / 4096.0, f32::NAN].iter().flat_map(|&x| vec![x; vocab]).collect();
    let got = same_bits("bright rows", |isa, pool| {
        let mut slices = [1.0; 16];
        let mut parts = slices.chunks_exact_mut(4);
        let mut part = || parts.next().unwrap();
        let state = cross_entropy::State {
            top: part(),
            total: &mut [1.0, 1.0, 1.0, f32::NAN],
            shift: part(),
            label: part(),
            best: part(),
        };
        let mut rows = [0; 4];
        let bright = cross_entropy::bright(isa, pool, &strip, &state, &mut rows);
        rows[..bright].iter().map(|&row| row as f32).collect()
    });
    assert_eq!(got, [0.0, 2.0, 3.0]);
}

#[test]
fn a_nan_in_the_logits_reaches_the_loss() {
    let mut logits = random(1, 3000);
    logits[2000] = f32::NAN;
    assert!(cross_entropy(Isa::best(), &Pool::new(1).unwrap(), &logits, &[5])[0].is_nan());
}

#[test]
fn updates_have_the_same_bits_everywhere() {
    let (p, g) = (random(1, 40_001), random(2, 40_001));
    let rule = update::AdamW { lr: 0.01, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 3 };
    let moved = same_bits("adamw", |isa, pool| {
        let (mut p, mut m, mut v) = (p.clone(), vec![0.1; p.len()], vec![0.2; p.len()]);
        update::adamw(isa, pool, rule, &mut p, &g, &mut m, &mut v);
        [p, m, v].concat()
    });
    assert!(moved[..p.len()].iter().zip(&p).any(|(a, b)| a != b));
    same_bits("adamw in 8 bits", |isa, pool| {
        let (mut p, mut state) = (p.clone(), vec![0.0; update::state_len_8bit(p.len())]);
        for step in 1..4 {
            update::adamw_8bit(isa, pool, update::AdamW { step, ..rule }, &mut p, &g, &mut state);
        }
        [p, state].concat()
    });
    same_bits("sgd", |isa, pool| {
        let mut p = p.clone();
        update::sgd(isa, pool, update::Sgd { lr: 0.1, weight_decay: 0.01 }, &mut p, &g);
        p
    });
}

#[test]
fn magnitudes_match_the_reference_and_sums_go_on_where_they_stopped() {
    for (tokens, rows, cols, rank) in [(0, 3, 5, 1), (1, 1, 1, 2), (7, 33, 17, 3), (70, 96, 64, 8)] {
        let (w, a, b) = (random(1, rows * cols), random(2, rank * cols), random(3, rank * rows));
        let n = same_bits("lengths", |isa, pool| {
            let (mut n, mut scratch) =
                (vec![f32::NAN; rows], vec![f32::NAN; dora::lengths_scratch(cols, pool.threads())]);
            dora::lengths(isa, pool, Weight::f32(rows, cols, &w), &a, &b, 0.5, &mut scratch, &mut n);
            n
        });
        close("lengths", &n, &reference::lengths(&w, &a, &b, 0.5, rows), 1e-5);
        let (z, g) = (random(4, tokens * rows), random(5, tokens * rows));
        let (m, bias) = (random(6, rows), random(7, rows));
        let y = same_bits("magnitudes", |isa, pool| {
            let mut y = vec![f32::NAN; z.len()];
            dora::forward(isa, pool, &z, &m, &n, Some(&bias), &mut y);
            y
        });
        close("magnitudes", &y, &reference::dora(&z, &m, &n, &bias), 1e-5);
        let run = |isa, pool: &Pool, cut: usize| {
            let (mut gz, mut gm) = (vec![f32::NAN; z.len()], vec![f32::NAN; rows]);
            let (front, back) = gz.split_at_mut(cut * rows);
            let part = |range: std::ops::Range<usize>| (&z[range.clone()], &g[range]);
            dora::backward(isa, pool, part(0..cut * rows), (&m, &n), (front, false), (&mut gm, false));
            dora::backward(isa, pool, part(cut * rows..z.len()), (&m, &n), (back, false), (&mut gm, true));
            [gz, gm].concat()
        };
        let got = same_bits("magnitudes backward", |isa, pool| run(isa, pool, 0));
        let (gz, gm) = reference::dora_backward(&z, &m, &n, &g);
        close("magnitudes backward", &got, &[gz, gm].concat(), 1e-4);
        assert!(got == run(Isa::best(), &Pool::new(2).unwrap(), tokens / 3), "in two pieces");
    }
}

#[test]
fn dropout_drops_its_share_and_the_same_elements_in_any_pieces_and_both_ways() {
    let (len, share) = (100_003, 0.3);
    let mask = Mask::new(Philox::new(3, 7), share);
    let (pool, x) = (Pool::new(2).unwrap(), random(8, len));
    let mut whole = vec![f32::NAN; len];
    dropout::forward(Isa::best(), &pool, mask, 0, &x, &mut whole);
    let kept = whole.iter().zip(&x).filter(|(y, x)| **y == **x * (1.0 / (1.0 - share))).count();
    let dropped = whole.iter().filter(|y| **y == 0.0).count();
    assert_eq!(kept + dropped, len);
    let (seen, wanted) = (dropped as f64 / len as f64, f64::from(share));
    assert!((seen - wanted).abs() < 5.0 * (wanted * (1.0 - wanted) / len as f64).sqrt(), "{seen} dropped");
    for cut in [1, 7, 16_385, len - 3] {
        let mut pieces = vec![f32::NAN; len];
        let (front, back) = pieces.split_at_mut(cut);
        dropout::forward(Isa::best(), &pool, mask, 0, &x[..cut], front);
        dropout::forward(Isa::best(), &pool, mask, cut, &x[cut..], back);
        assert!(pieces == whole, "cut at {cut}");
    }
    let all = same_bits("dropout", |isa, pool| {
        let mut y = vec![f32::NAN; len];
        dropout::forward(isa, pool, mask, 5, &x, &mut y);
        y
    });
    let one = |at: usize| {
        let bits = Philox::new(3, 7).at(((at + 5) / 8) as u64)[(at + 5) % 8 / 2] >> (16 * ((at + 5) % 2)) & 0xffff;
        if bits < (share * 65536.0).round() as u32 { 0.0 } else { x[at] * (1.0 / (1.0 - share)) }
    };
    assert!(all.iter().enumerate().all(|(at, y)| *y == one(at)), "element by element");
    let mut back = vec![1.0; len];
    dropout::backward(Isa::best(), &pool, mask, 0, &x, &mut back, true);
    assert!(back.iter().zip(&whole).all(|(back, y)| *back == 1.0 + y));
    dropout::backward(Isa::best(), &pool, mask, 0, &x, &mut back, false);
    assert!(back == whole);
    let mut other = vec![0.0; len];
    dropout::forward(Isa::best(), &pool, Mask::new(Philox::new(3, 8), share), 0, &x, &mut other);
    assert!(other != whole, "another stream is another mask");
}

#[test]
fn an_embedding_s_adapter_picks_columns_and_gives_gradients_back_to_them() {
    let (vocab, rank, ids) = (5, 3, [4_u32, 0, 4, 2]);
    let (a, gh) = (random(1, rank * vocab), random(2, rank * ids.len()));
    let (mut h, mut ga) = (vec![f32::NAN; gh.len()], vec![0.0; a.len()]);
    embed::gather(&a, vocab, &ids, 0.5, &mut h);
    embed::scatter(&gh, vocab, &ids, 0.5, &mut ga);
    for r in 0..rank {
        for (t, &id) in ids.iter().enumerate() {
            assert_eq!(h[t * rank + r], 0.5 * a[r * vocab + id as usize]);
        }
        for id in 0..vocab {
            let tokens = ids.iter().enumerate().filter(|(_, other)| **other as usize == id);
            assert_eq!(ga[r * vocab + id], tokens.map(|(t, _)| 0.5 * gh[t * rank + r]).sum::<f32>());
        }
    }
}
