//! Every derivative of the scalar reference against finite differences in f64.

use pocketune_kernels::activation::Act;
use pocketune_kernels::attention::{Heads, Segment, Window};
use pocketune_kernels::philox::Philox;
use pocketune_kernels::reference as op;

fn random(stream: u64, len: usize) -> Vec<f64> {
    let numbers = Philox::new(7, stream);
    (0..len as u64).map(|i| f64::from(numbers.uniform(i)) * 2.0 - 1.0).collect()
}

/// Compares `gradient` with central differences of `Σ weights f(x)` in every coordinate of `x`.
fn check(name: &str, x: &[f64], weights: &[f64], gradient: &[f64], f: impl Fn(&[f64]) -> Vec<f64>) {
    const STEP: f64 = 1e-5;
    assert_eq!(x.len(), gradient.len(), "{name}");
    let total = |x: &[f64]| {
        let y = f(x);
        assert_eq!(y.len(), weights.len(), "{name}");
        y.iter().zip(weights).map(|(y, w)| y * w).sum::<f64>()
    };
    assert!(gradient.iter().any(|g| g.abs() > 1e-3), "{name}: a gradient of zero proves nothing");
    for i in 0..x.len() {
        let mut moved = x.to_vec();
        moved[i] = x[i] + STEP;
        let above = total(&moved);
        moved[i] = x[i] - STEP;
        let difference = (above - total(&moved)) / (2.0 * STEP);
        let error = (difference - gradient[i]).abs() / difference.abs().max(1.0);
        assert!(error < 1e-6, "{name}[{i}]: derivative {} but difference {difference}", gradient[i]);
    }
}

#[test]
fn linear_by_input_and_by_weight() {
    let (n, rows, cols) = (3, 4, 5);
    let (x, w, bias) = (random(1, n * cols), random(2, rows * cols), random(3, rows));
    let weights = random(4, n * rows);
    let (gx, gw) = op::linear_backward(&x, &w, &weights, n, rows, cols);
    check("x", &x, &weights, &gx, |x| op::linear(x, &w, &bias, n, rows, cols));
    check("w", &w, &weights, &gw, |w| op::linear(&x, w, &bias, n, rows, cols));
}

#[test]
fn adapter_by_both_factors_through_two_products() {
    // y = (x Aᵀ) Bᵀ: the chain that the engine runs as two products, from the formulas gB = gᵀ h, gh = g B, gA = ghᵀ x, gx = gh A.
    let (n, rank, rows, cols) = (3, 2, 4, 5);
    let (x, a, b) = (random(1, n * cols), random(2, rank * cols), random(3, rows * rank));
    let weights = random(4, n * rows);
    let forward =
        |x: &[f64], a: &[f64], b: &[f64]| op::linear(&op::linear(x, a, &[], n, rank, cols), b, &[], n, rows, rank);
    let h = op::linear(&x, &a, &[], n, rank, cols);
    let (gh, gb) = op::linear_backward(&h, &b, &weights, n, rows, rank);
    let (gx, ga) = op::linear_backward(&x, &a, &gh, n, rank, cols);
    check("x", &x, &weights, &gx, |x| forward(x, &a, &b));
    check("a", &a, &weights, &ga, |a| forward(&x, a, &b));
    check("b", &b, &weights, &gb, |b| forward(&x, &a, b));
}

#[test]
fn norm_by_input() {
    let (x, w, weights) = (random(1, 12), random(2, 6), random(3, 12));
    check("x", &x, &weights, &op::norm_backward(&x, &w, 1e-5, &weights), |x| op::norm(x, &w, 1e-5));
}

#[test]
fn magnitudes_by_input_and_by_themselves() {
    let (z, m, n, bias, weights) = (random(1, 12), random(2, 6), random(3, 6), random(4, 6), random(5, 12));
    let n: Vec<f64> = n.iter().map(|n| n.abs() + 0.5).collect();
    let (gz, gm) = op::dora_backward(&z, &m, &n, &weights);
    check("z", &z, &weights, &gz, |z| op::dora(z, &m, &n, &bias));
    check("m", &m, &weights, &gm, |m| op::dora(&z, m, &n, &bias));
}

#[test]
fn layer_norm_by_input() {
    let (x, w, b, weights) = (random(1, 12), random(2, 6), random(4, 6), random(3, 12));
    let gx = op::layer_norm_backward(&x, &w, 1e-5, &weights);
    check("x", &x, &weights, &gx, |x| op::layer_norm(x, &w, &b, 1e-5));
}

#[test]
fn activation_by_input() {
    for act in [Act::Silu, Act::GeluTanh, Act::Gelu, Act::Relu, Act::Tanh] {
        let (x, weights) = (random(1, 9).iter().map(|x| x * 3.0).collect::<Vec<_>>(), random(2, 9));
        check("x", &x, &weights, &op::act_backward(act, &x, &weights), |x| op::act(act, x));
    }
}

#[test]
fn rope_by_input_in_both_layouts() {
    let (d, positions) = (4, [0, 3, 1]);
    let table: Vec<(f64, f64)> =
        (0..4 * d / 2).map(|i| (f64::from(i as f32).cos(), f64::from(i as f32).sin())).collect();
    let (x, weights) = (random(1, 3 * 2 * d), random(2, 3 * 2 * d));
    for interleaved in [false, true] {
        let gx = op::rope(&weights, &table, &positions, d, interleaved, true);
        check("x", &x, &weights, &gx, |x| op::rope(x, &table, &positions, d, interleaved, false));
    }
}

#[test]
fn attention_by_queries_keys_and_values_with_groups_windows_and_segments() {
    let segments = [
        Segment { q_start: 0, q_len: 5, k_start: 0, k_len: 5 },
        Segment { q_start: 5, q_len: 3, k_start: 5, k_len: 3 },
    ];
    for window in [Window::Past, Window::Last(2), Window::Whole] {
        let heads = Heads { queries: 4, kv: 2, d: 3, scale: 0.7, window };
        let (q, k, v) = (random(1, 8 * 12), random(2, 8 * 6), random(3, 8 * 6));
        let weights = random(4, 8 * 12);
        let (out, lse) = op::attention(&q, &k, &v, heads, &segments);
        let (gq, gk, gv) = op::attention_backward(&q, &k, &v, &out, &lse, &weights, heads, &segments);
        check("q", &q, &weights, &gq, |q| op::attention(q, &k, &v, heads, &segments).0);
        check("k", &k, &weights, &gk, |k| op::attention(&q, k, &v, heads, &segments).0);
        check("v", &v, &weights, &gv, |v| op::attention(&q, &k, v, heads, &segments).0);
    }
}

#[test]
fn gated_activation_by_gate_and_up() {
    for act in [Act::Silu, Act::GeluTanh, Act::Gelu, Act::Relu] {
        let (gate, up, weights) = (random(1, 9), random(2, 9), random(3, 9));
        let (ggate, gup) = op::gated_backward(act, &gate, &up, &weights);
        check("gate", &gate, &weights, &ggate, |gate| op::gated(act, gate, &up));
        check("up", &up, &weights, &gup, |up| op::gated(act, &gate, up));
    }
}

#[test]
fn cross_entropy_by_logits() {
    let (logits, labels) = (random(1, 3 * 7), [2, 0, 6]);
    let weights = [1.0, 1.0, 1.0];
    let (_, gradient) = op::cross_entropy(&logits, &labels);
    check("logits", &logits, &weights, &gradient, |logits| op::cross_entropy(logits, &labels).0);
}
