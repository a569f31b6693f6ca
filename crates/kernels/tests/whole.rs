//! What training of a model's own matrices adds to the kernels: parts and rows have the bits of the whole, and gradients of norms are those of plain loops.

use pocketune_kernels::matmul::{Ctx, Precision, Start, tn, tn_part, tn_scratch};
use pocketune_kernels::update::{AdamW, adamw, adamw_8bit, adamw_8bit_rows, adamw_rows, state_len_8bit};
use pocketune_kernels::{Isa, Pool, cross_entropy, elementwise, norm};

const RULE: AdamW = AdamW { lr: 1e-2, weight_decay: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 3 };

fn numbers(len: usize, by: f32) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * by).sin()).collect()
}

#[test]
fn some_rows_of_a_gradient_have_the_bits_of_the_whole() {
    let (n, p, q, isa) = (70, 150, 90, Isa::detect().unwrap());
    let (a, b, pool) = (numbers(n * p, 0.7), numbers(n * q, 0.3), Pool::new(2).unwrap());
    for precision in Precision::ALL {
        let mut scratch = vec![0.0; tn_scratch(n, p, q, 2, isa, precision)];
        let mut whole = vec![0.0; p * q];
        tn(&mut Ctx { pool: &pool, isa, precision, scratch: &mut scratch }, &a, &b, n, p, q, &mut whole, Start::Zero);
        for part in [0..p, 0..1, 33..100, 149..150] {
            let mut rows = vec![f32::NAN; part.len() * q];
            let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
            tn_part(&mut ctx, (&a, p), part.clone(), &b, n, q, &mut rows, Start::Zero);
            assert_eq!(rows, whole[part.start * q..part.end * q], "{precision:?} {part:?}");
        }
    }
}

#[test]
fn rows_with_their_own_moments_move_as_one_matrix_does() {
    let (rows, cols, pool, isa) = (5, 48, Pool::new(3).unwrap(), Isa::detect().unwrap());
    let g = numbers(rows * cols, 0.9);
    let (mut p, mut m, mut v) = (numbers(rows * cols, 0.1), vec![0.1; rows * cols], vec![0.2; rows * cols]);
    let mut by_row = p.clone();
    let mut state = [vec![0.1; cols], vec![0.2; cols]].concat().repeat(rows);
    adamw(isa, &pool, RULE, &mut p, &g, &mut m, &mut v);
    adamw_rows(isa, &pool, RULE, cols, &mut by_row, &g, &mut state);
    assert_eq!(p, by_row);
    // In 8 bits a row is a matrix of its own.
    let (mut p, mut states) = (numbers(rows * cols, 0.1), vec![0.0; rows * state_len_8bit(cols)]);
    let mut by_row = p.clone();
    adamw_8bit_rows(isa, &pool, RULE, cols, &mut by_row, &g, &mut states);
    for (at, p) in p.chunks_mut(cols).enumerate() {
        adamw_8bit(isa, &pool, RULE, p, &g[at * cols..][..cols], &mut vec![0.0; state_len_8bit(cols)]);
    }
    assert_eq!(p, by_row);
}

#[test]
fn gradients_of_norms_and_biases_are_those_of_plain_loops() {
    let (rows, cols, eps) = (7, 24, 1e-5);
    let (x, gy) = (numbers(rows * cols, 0.77), numbers(rows * cols, 0.31));
    let (mut weight, mut bias) = (vec![0.0; cols], vec![0.0; cols]);
    elementwise::column_sums(&gy, &mut bias);
    for centred in [false, true] {
        norm::weight_gradient(Isa::detect().unwrap(), centred, &x, eps, &gy, &mut weight);
        let mean = |row: usize| {
            let sum: f64 = x[row * cols..][..cols].iter().map(|&x| f64::from(x)).sum();
            if centred { sum / cols as f64 } else { 0.0 }
        };
        let deviation = |row: usize| {
            let squares = x[row * cols..][..cols].iter().map(|&x| (f64::from(x) - mean(row)).powi(2));
            (squares.sum::<f64>() / cols as f64 + f64::from(eps)).sqrt()
        };
        for col in 0..cols {
            let at = |row: usize| (f64::from(x[row * cols + col]), f64::from(gy[row * cols + col]));
            let want: f64 = (0..rows).map(|row| (at(row).0 - mean(row)) / deviation(row) * at(row).1).sum();
            assert!((f64::from(weight[col]) - want).abs() < 1e-5, "{} instead of {want}", weight[col]);
            let want: f64 = (0..rows).map(|row| at(row).1).sum();
            assert!((f64::from(bias[col]) - want).abs() < 1e-5, "{} instead of {want}", bias[col]);
        }
    }
}

#[test]
fn logits_become_gradients_by_their_log_sum_exp_and_rows_without_a_label_have_none() {
    let (len, pool) = (6, Pool::new(2).unwrap());
    let logits = numbers(3 * len, 0.4);
    let lse: Vec<f32> = logits.chunks(len).map(|row| row.iter().map(|x| x.exp()).sum::<f32>().ln()).collect();
    let (mut found, labels) = (logits.clone(), [1026, u32::MAX, 3]);
    cross_entropy::gradient_of(Isa::Scalar, &pool, &mut found, 1024, &labels, &lse, 0.5);
    for (row, (found, logits)) in found.chunks(len).zip(logits.chunks(len)).enumerate() {
        for (at, (found, logit)) in found.iter().zip(logits).enumerate() {
            let hit = if labels[row] as usize == 1024 + at { 1.0 } else { 0.0 };
            let want = if labels[row] == u32::MAX { 0.0 } else { 0.5 * ((logit - lse[row]).exp() - hit) };
            assert!((found - want).abs() < 1e-6, "{row} {at}: {found} instead of {want}");
        }
    }
}
