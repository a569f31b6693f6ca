//! AdamW with 8-bit moments: the maps against bitsandbytes' own (`oracle/dynamic_maps.py` wrote the golden files), rounding against every
//! number of the map, and updates against AdamW in f64 on the same quantised state.

use std::path::Path;

use pocketune_kernels::philox::Philox;
use pocketune_kernels::update::{AdamW, BLOCK_8BIT, DynamicMap, SIGNED, UNSIGNED, adamw_8bit, state_len_8bit};
use pocketune_kernels::{Isa, Pool};
use proptest::prelude::*;

const RULE: AdamW = AdamW { lr: 0.01, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 1 };

#[test]
fn the_maps_are_those_of_bitsandbytes() {
    for (name, map) in [("dynamic_signed", &SIGNED), ("dynamic_unsigned", &UNSIGNED)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.bin"));
        let file = std::fs::read(path).unwrap();
        let want: Vec<f32> = file.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        assert_eq!(want.len(), 256);
        for (code, (got, want)) in map.values().iter().zip(want).enumerate() {
            // bitsandbytes computes them in f32, which takes it up to two units of the last place from the numbers meant.
            assert!((got - want).abs() <= 2.0 * f32::EPSILON * want.abs(), "{name}[{code}]: {got:e}, not {want:e}");
        }
    }
}

#[test]
fn every_number_of_a_map_has_its_own_code() {
    for map in [&SIGNED, &UNSIGNED] {
        assert!(map.values().is_sorted());
        for code in 0..=255 {
            assert_eq!(map.code(map.value(code)), code);
        }
    }
}

/// How much farther from `x` the number of `code` is than the nearest of all.
fn excess(map: &DynamicMap, code: u8, x: f64) -> f64 {
    let distance = |value: f32| (f64::from(value) - x).abs();
    distance(map.value(code)) - map.values().iter().map(|&value| distance(value)).fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn a_number_gets_the_code_of_the_nearest(exponent in -9.0_f64..0.0, negative: bool) {
        let x = 10_f64.powf(exponent) as f32;
        prop_assert!(excess(&UNSIGNED, UNSIGNED.code(x), x.into()) <= f64::from(4.0 * f32::EPSILON * x));
        let x = if negative { -x } else { x };
        prop_assert!(excess(&SIGNED, SIGNED.code(x), x.into()) <= f64::from(4.0 * f32::EPSILON * x.abs()));
    }

    #[test]
    fn updates_are_those_of_adamw_on_the_numbers_that_the_state_stands_for(
        len in 1_usize..1200,
        seed: u64,
        spread in 0.0_f32..6.0,
    ) {
        let random = |stream| {
            let numbers = Philox::new(seed, stream);
            move |i: usize| numbers.uniform(i as u64)
        };
        let (start, size, sign) = (random(0), random(1), random(2));
        let mut p: Vec<f32> = (0..len).map(|i| start(i) - 0.5).collect();
        let mut state = vec![0.0; state_len_8bit(len)];
        let pool = Pool::new(2).unwrap();
        for step in 1..=4 {
            // Gradients over some decades, as a block of a real matrix has them.
            let at = |i: usize| step as usize * len + i;
            let g: Vec<f32> =
                (0..len).map(|i| 10_f32.powf(-spread * size(at(i))) * if sign(at(i)) < 0.5 { -1.0 } else { 1.0 }).collect();
            let (p_before, before) = (p.clone(), Moments::read(&state, len));
            adamw_8bit(Isa::best(), &pool, AdamW { step, ..RULE }, &mut p, &g, &mut state);
            let after = Moments::read(&state, len);
            let term = |(&m, &g): (&f64, &f32)| f64::from(RULE.beta1) * m.abs() + f64::from((1.0 - RULE.beta1) * g.abs());
            let terms: Vec<f64> = before.m.iter().zip(&g).map(term).collect();
            let largest = |block: &[f64]| block.iter().copied().fold(0.0, f64::max);
            let largest: Vec<f64> = terms.chunks(BLOCK_8BIT).map(largest).collect();
            for i in 0..len {
                let [m, v, wanted] = adamw(step, p_before[i], g[i], before.m[i], before.v[i]);
                prop_assert!((f64::from(p[i]) - wanted).abs() <= 1e-6, "step {}: p[{}] {}, not {}", step, i, p[i], wanted);
                after.check(i, (m, largest[i / BLOCK_8BIT]), v);
            }
        }
    }
}

/// Plain AdamW of one number in f64: the new moments and the new parameter.
fn adamw(step: u64, p: f32, g: f32, m: f64, v: f64) -> [f64; 3] {
    let [p, g, lr, decay, beta1, beta2, eps] =
        [p, g, RULE.lr, RULE.weight_decay, RULE.beta1, RULE.beta2, RULE.eps].map(f64::from);
    let (m, v) = (beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g);
    let (m_hat, v_hat) = (m / (1.0 - beta1.powi(step as i32)), v / (1.0 - beta2.powi(step as i32)));
    [m, v, p * (1.0 - lr * decay) - lr * m_hat / (v_hat.sqrt() + eps)]
}

/// What a state stands for.
struct Moments {
    codes: [Vec<u8>; 2],
    maxima: [Vec<f32>; 2],
    m: Vec<f64>,
    v: Vec<f64>,
}

impl Moments {
    fn read(state: &[f32], len: usize) -> Self {
        let blocks = len.div_ceil(BLOCK_8BIT);
        let bytes: Vec<u8> = state[2 * blocks..].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let codes = [bytes[..len].to_vec(), bytes[len..2 * len].to_vec()];
        let maxima = [state[..blocks].to_vec(), state[blocks..2 * blocks].to_vec()];
        let number = |map: &DynamicMap, codes: &[u8], maxima: &[f32]| {
            codes.iter().enumerate().map(|(i, &code)| f64::from(map.value(code) * maxima[i / BLOCK_8BIT])).collect()
        };
        let m = number(&SIGNED, &codes[0], &maxima[0]);
        let v = number(&UNSIGNED, &codes[1], &maxima[1]);
        Self { codes, maxima, m, v }
    }

    /// Number `i` holds `m` and `v`, each rounded to the nearest that its block has, where no `m` there is a sum of more than `largest` without signs.
    fn check(&self, i: usize, (m, largest): (f64, f64), v: f64) {
        let maxima = [0, 1].map(|at| f64::from(self.maxima[at][i / BLOCK_8BIT]));
        // The sums are made in f32: a share may be off by some units of the last place of the largest term, which is more than the largest sum where a block's
        // gradients have just turned against its moments.
        let (off, v_off) = (1e-6 * f64::max(1.0, largest / maxima[0]), 1e-6);
        let (m_share, v_share) = (m / maxima[0], v / maxima[1]);
        assert!(
            m_share.abs() <= 1.0 + off && v_share <= 1.0 + v_off,
            "{i}: {m_share} {v_share} of the block's largest"
        );
        assert!(excess(&SIGNED, self.codes[0][i], m_share) <= off, "m[{i}]: {m} is held as {}", self.m[i]);
        let smallest = self.codes[1][i] == 1 && v_share < f64::from(UNSIGNED.value(1));
        assert!(
            smallest || excess(&UNSIGNED, self.codes[1][i], v_share) <= v_off,
            "v[{i}]: {v} is held as {}",
            self.v[i]
        );
        assert!(v == 0.0 || self.v[i] > 0.0, "v[{i}]: {v} is held as zero");
    }
}

#[test]
fn a_gradient_of_zeros_changes_nothing_but_the_decay() {
    let (mut p, mut state) = (vec![1.0; 300], vec![0.0; state_len_8bit(300)]);
    adamw_8bit(Isa::best(), &Pool::new(1).unwrap(), RULE, &mut p, &[0.0; 300], &mut state);
    assert!(p.iter().all(|&p| p == 1.0 - 0.01 * 0.01), "{}", p[0]);
    let moments = Moments::read(&state, 300);
    assert!(moments.m.iter().chain(&moments.v).all(|&moment| moment == 0.0));
}

#[test]
fn a_nan_in_a_gradient_is_not_lost() {
    let (mut p, mut state) = (vec![1.0; 600], vec![0.0; state_len_8bit(600)]);
    let mut g = vec![0.1; 600];
    g[300] = f32::NAN;
    adamw_8bit(Isa::best(), &Pool::new(1).unwrap(), RULE, &mut p, &g, &mut state);
    assert!(p[300].is_nan() && p[299].is_finite());
    let moments = Moments::read(&state, 600);
    assert!(moments.m[300].is_nan() && moments.v[300].is_nan() && moments.m[0].is_finite());
}
