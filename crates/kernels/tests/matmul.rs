//! The products against a naive f64 sum and, bit for bit, against the scalar reference: all block types, awkward sizes, every
//! instruction set of this processor, any number of threads and any batching.

use std::ops::Range;

use half::{bf16, f16};
use pocketune_kernels::blocks::dequantize;
use pocketune_kernels::dequant::dequantize_row;
use pocketune_kernels::matmul::{self, Ctx, Low, LowRank, Precision, Shape, Start, Weight};
use pocketune_kernels::{BlockType, Isa, Pool, Values, ValuesMut};

const PRECISIONS: [Precision; 3] = Precision::ALL;

/// Products of more multiplications keep the scalar reference at work for long.
const LARGE: usize = 4 << 20;

/// Arm is emulated where these tests run, and takes minutes for the cases that are as large as AMX's wide pieces of outputs ask for.
const EMULATED: bool = cfg!(target_arch = "aarch64");

/// How many rows meet a weight of `rows` by `cols` in a case that has `n` of them: where emulated, two tiles and one more of a large one.
fn met_by(rows: usize, cols: usize, n: usize) -> usize {
    if EMULATED && rows * cols * n > LARGE { n.min(25) } else { n }
}

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.iter().copied().filter(|isa| isa.available())
}

/// A small generator (SplitMix64): every test's data is a function of its seed.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }

    /// Random blocks whose scales are small finite numbers.
    fn blocks(&mut self, ty: BlockType, elements: usize) -> Vec<u8> {
        let count = elements / ty.block_len();
        let mut data: Vec<u8> = (0..count * ty.block_bytes()).map(|_| self.bits() as u8).collect();
        for block in data.chunks_exact_mut(ty.block_bytes()) {
            let mut half = |at: usize, scale: f32| {
                block[at..at + 2].copy_from_slice(&f16::from_f32(self.float() * scale).to_le_bytes());
            };
            match ty {
                BlockType::F32 => block.copy_from_slice(&self.float().to_le_bytes()),
                BlockType::F16 => half(0, 1.0),
                BlockType::BF16 => block.copy_from_slice(&bf16::from_f32(self.float()).to_le_bytes()),
                BlockType::Q8_0 => half(0, 0.01),
                BlockType::Q4_0 | BlockType::Q5_0 => half(0, 0.1),
                BlockType::Q4_1 | BlockType::Q5_1 => {
                    half(0, 0.1);
                    half(2, 1.0);
                }
                BlockType::Q4_K | BlockType::Q5_K => {
                    half(0, 0.003);
                    half(2, 0.03);
                }
                BlockType::Q6_K => half(208, 0.001),
            }
        }
        data
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Nt,
    Nn,
    Tn,
}

/// A product with its data. For `Tn`, `rows` is n, `cols` is q and `n` is p.
#[derive(Clone)]
struct Case {
    op: Op,
    ty: BlockType,
    rows: usize,
    cols: usize,
    n: usize,
    data: Vec<u8>,
    left: Vec<f32>,
    bias: Vec<f32>,
    before: Vec<f32>,
}

impl Case {
    fn new(op: Op, ty: BlockType, rows: usize, cols: usize, n: usize) -> Self {
        let mut random = Random((rows * 31 + cols * 7 + n) as u64);
        let data = random.blocks(ty, rows * cols);
        let (left, width) = match op {
            Op::Nt => (n * cols, rows),
            Op::Nn | Op::Tn => (n * rows, cols),
        };
        let (left, bias, before) = (random.floats(left), random.floats(width), random.floats(n * width));
        Self { op, ty, rows, cols, n, data, left, bias, before }
    }

    fn large(&self) -> bool {
        self.rows * self.cols * self.n > LARGE
    }

    fn start(&self, which: usize) -> Start<'_> {
        [Start::Zero, Start::Bias(&self.bias), Start::Output][which]
    }

    /// The output, computed with scratch memory of exactly the length asked for and full of NaN.
    fn run(&self, isa: Isa, precision: Precision, threads: usize, start: usize) -> Vec<f32> {
        let pool = Pool::new(threads).unwrap();
        let &Self { op, ty, rows, cols, n, .. } = self;
        let len = match op {
            Op::Nt => matmul::nt_scratch(Shape { ty, rows, cols, n, rank: 0 }, threads, isa, precision),
            Op::Nn => matmul::nn_scratch(Shape { ty, rows, cols, n, rank: 0 }, threads, isa, precision),
            Op::Tn => matmul::tn_scratch(rows, n, cols, threads, isa, precision),
        };
        let mut scratch = vec![f32::NAN; len];
        let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
        let mut out = if start == 2 { self.before.clone() } else { vec![f32::NAN; self.before.len()] };
        let (w, start) = (Weight::new(ty, rows, cols, &self.data), self.start(start));
        match op {
            Op::Nt => matmul::nt(&mut ctx, w, &self.left, n, &mut out, start, None),
            Op::Nn => matmul::nn(&mut ctx, w, &self.left, n, &mut out, start, None),
            Op::Tn => {
                let mut b = vec![0.0; rows * cols];
                dequantize(ty, &self.data, &mut b);
                matmul::tn(&mut ctx, &self.left, &b, rows, n, cols, &mut out, start);
            }
        }
        out
    }

    /// The products in f64, whatever they are added to, of what the inputs are in bf16 where that is asked for; and for each element the sum of the
    /// magnitudes that went into it.
    fn naive(&self, precision: Precision) -> Vec<(f64, f64)> {
        let round = |x: f32| f64::from(if precision == Precision::Bf16 { bf16::from_f32(x).to_f32() } else { x });
        let mut w = vec![0.0; self.rows * self.cols];
        dequantize(self.ty, &self.data, &mut w);
        let [w, left] = [w, self.left.clone()].map(|values| values.into_iter().map(round).collect::<Vec<f64>>());
        let (width, k) = if self.op == Op::Nt { (self.rows, self.cols) } else { (self.cols, self.rows) };
        let mut out = Vec::new();
        for i in 0..self.n {
            for j in 0..width {
                let (mut sum, mut size) = (0.0, 0.0);
                for k0 in 0..k {
                    let b = if self.op == Op::Nt { w[j * k + k0] } else { w[k0 * width + j] };
                    let a = if self.op == Op::Tn { left[k0 * self.n + i] } else { left[i * k + k0] };
                    sum += a * b;
                    size += (a * b).abs();
                }
                out.push((sum, size));
            }
        }
        out
    }

    /// How far rounding both operands to 16-bit integers may move each element. No integer is off by more than half a step, so a group is off by at most
    /// `√len / 2` steps. A step is 1/32,700 of the group's norm; or, where blocks say how large their elements can be, 1/65,000 of the norm that these would have, or
    /// 1/32,700 of the largest where that is more.
    fn lost_in_integers(&self) -> Vec<f64> {
        let mut w = vec![0.0; self.rows * self.cols];
        dequantize(self.ty, &self.data, &mut w);
        let (width, k) = if self.op == Op::Nt { (self.rows, self.cols) } else { (self.cols, self.rows) };
        let groups: Vec<_> = (0..k).step_by(256).map(|k0| k0..k.min(k0 + 256)).collect();
        let norm = |xs: &mut dyn Iterator<Item = f32>| xs.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let half = |ks: &Range<usize>| (ks.len() as f64).sqrt() / 2.0;
        // The norms of the groups of an output or a row, and how far rounding may move each.
        type Group = (f64, f64);
        let left = |i: usize, ks: &Range<usize>| -> Group {
            let norm = norm(&mut ks.clone().map(|k0| self.left[i * k + k0]));
            (norm, half(ks) * norm / 32_700.0)
        };
        let at = |j: usize, k0: usize| if self.op == Op::Nt { j * k + k0 } else { k0 * width + j };
        // Of 32 random elements the largest is more than half of what their block could have.
        let bound = |at: usize| 2.0 * w[at / 32 * 32..][..32].iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let right = |j: usize, ks: &Range<usize>| -> Group {
            let own = norm(&mut ks.clone().map(|k0| w[at(j, k0)]));
            if self.ty.block_len() == 1 {
                return (own, half(ks) * own / 32_700.0);
            }
            let bounds = || ks.clone().map(|k0| bound(at(j, k0)));
            let step = (norm(&mut bounds()) / 65_000.0).max(f64::from(bounds().fold(0.0, f32::max)) / 32_700.0);
            (own, half(ks) * step)
        };
        let all = |count: usize, of: &dyn Fn(usize, &Range<usize>) -> Group| -> Vec<Vec<Group>> {
            (0..count).map(|i| groups.iter().map(|ks| of(i, ks)).collect()).collect()
        };
        let (left, right) = (all(self.n, &left), all(width, &right));
        let lost = |a: &[Group], b: &[Group]| a.iter().zip(b).map(|(a, b)| a.0 * b.1 + b.0 * a.1 + a.1 * b.1).sum();
        left.iter().flat_map(|a| right.iter().map(move |b| (a, b))).map(|(a, b)| lost(a, b)).collect()
    }

    /// What element `at` of the output begins with.
    fn first(&self, start: usize, at: usize) -> f64 {
        f64::from(match self.start(start) {
            Start::Zero => 0.0,
            Start::Bias(bias) => bias[at % bias.len()],
            Start::Output => self.before[at],
        })
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Shapes that miss, meet and pass the borders of tiles, panels and blocks of the sum.
fn awkward(op: Op) -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, cols, n) in [
        (0, 5, 3),
        (5, 0, 3),
        (5, 7, 0),
        (1, 1, 1),
        (2, 3, 5),
        (7, 13, 11),
        (16, 37, 25),
        (17, 33, 13),
        (33, 65, 12),
        (31, 257, 7),
        (129, 300, 33),
        (67, 523, 37),
        (523, 67, 37),
        (16, 1100, 97),
        (1100, 16, 97),
        (300, 1031, 2),
        (40, 40, 600),
    ] {
        cases.push(Case::new(op, BlockType::F32, rows, cols, n));
    }
    if op != Op::Tn {
        for ty in BlockType::ALL {
            let b = ty.block_len().max(32);
            for (rows, cols, n) in [(1, b, 1), (37, 3 * b, 13), (70, 5 * b, 6)] {
                cases.push(Case::new(op, ty, rows, cols, n));
            }
        }
        cases.push(Case::new(op, BlockType::Q4_1, 291, 1312, 5));
        cases.push(Case::new(op, BlockType::Q6_K, 291, 1280, 5));
        // Sums and outputs that are long and many enough for wider pieces of outputs, and some left over.
        let (sum, outputs) = (928, 480);
        let (rows, cols) = if op == Op::Nt { (outputs, sum) } else { (sum, outputs) };
        cases.push(Case::new(op, BlockType::Q4_0, rows, cols, met_by(rows, cols, 40)));
        cases.push(Case::new(op, BlockType::F32, rows + 5, cols + 7, met_by(rows, cols, 49)));
    }
    cases
}

fn matches_naive_and_scalar(op: Op) {
    for case in awkward(op) {
        for precision in PRECISIONS {
            let naive = case.naive(precision);
            let lost = match (precision, op) {
                (Precision::Int16, Op::Nt | Op::Nn) => case.lost_in_integers(),
                _ => vec![0.0; naive.len()],
            };
            // The reference is slow: large cases have the start that reads most.
            for start in if case.large() { 2..3 } else { 0..3 } {
                let scalar = case.run(Isa::Scalar, precision, 1, start);
                for isa in isas() {
                    // The reference is slow, and the same for any number of threads (below).
                    let got = if isa == Isa::Scalar { scalar.clone() } else { case.run(isa, precision, 2, start) };
                    let what = format!(
                        "{op:?} {} {precision:?} {} rows {} cols {} n {} start {start}",
                        isa.name(),
                        case.ty.name(),
                        case.rows,
                        case.cols,
                        case.n
                    );
                    for (i, (&got, &(sum, size))) in got.iter().zip(&naive).enumerate() {
                        let first = case.first(start, i);
                        let (sum, size) = (first + sum, first.abs() + size);
                        let error = (f64::from(got) - sum).abs();
                        // An f32 chain loses at most an epsilon of the magnitudes per step; it is far better in practice.
                        let allowed = 1e-5 * size + 1e-12 + lost[i];
                        assert!(error <= allowed, "{what}: element {i} is {got}, should be {sum}");
                    }
                    if precision.same_everywhere() || isa.precision() != precision {
                        assert!(same_bits(&got, &scalar), "{what}: other bits than the scalar reference");
                    }
                }
            }
        }
    }
}

#[test]
fn nt_matches_f64_and_the_bits_of_the_scalar_reference() {
    matches_naive_and_scalar(Op::Nt);
}

#[test]
fn nn_matches_f64_and_the_bits_of_the_scalar_reference() {
    matches_naive_and_scalar(Op::Nn);
}

#[test]
fn tn_matches_f64_and_the_bits_of_the_scalar_reference() {
    matches_naive_and_scalar(Op::Tn);
}

#[test]
fn rounding_inputs_to_bf16_moves_no_element_by_more_than_a_fiftieth() {
    for (op, ty, rows, cols, n) in [
        (Op::Nt, BlockType::F32, 37, 523, 9),
        (Op::Nn, BlockType::F32, 523, 37, 9),
        (Op::Tn, BlockType::F32, 301, 37, 9),
        (Op::Nt, BlockType::Q4_K, 37, 512, 9),
        (Op::Nn, BlockType::Q8_0, 301, 64, 9),
    ] {
        let mut case = Case::new(op, ty, rows, cols, n);
        if ty == BlockType::F32 {
            // Without signs nothing cancels, and an element is as large as what went into it.
            case.left.iter_mut().for_each(|x| *x = x.abs());
            case.data.as_chunks_mut::<4>().0.iter_mut().for_each(|x| x[3] &= 0x7f);
        }
        let exact = case.naive(Precision::F32);
        for isa in isas() {
            for (got, &(sum, size)) in case.run(isa, Precision::Bf16, 2, 0).iter().zip(&exact) {
                assert!(ty != BlockType::F32 || sum == size);
                assert!(
                    (f64::from(*got) - sum).abs() <= 2e-2 * size,
                    "{op:?} {} {}: {got} for {sum}",
                    isa.name(),
                    ty.name()
                );
            }
        }
    }
}

#[test]
fn integers_lose_a_tenth_of_what_bf16_loses_and_a_fifth_beside_an_outlier() {
    for (op, rows, cols) in [(Op::Nt, 64, 1536), (Op::Nn, 1536, 64)] {
        for (peak, least) in [(1.0, 9.0), (300.0, 5.0)] {
            let mut case = Case::new(op, BlockType::Q8_0, rows, cols, 32);
            // An element that is far larger than the others of its row, as models have them.
            case.left.iter_mut().skip(7).step_by(1536).for_each(|x| *x *= peak);
            let exact = case.naive(Precision::F32);
            let lost = |precision| {
                let got = case.run(Isa::best(), precision, 1, 0);
                let squares = got.iter().zip(&exact).map(|(got, (sum, _))| (f64::from(*got) - sum).powi(2));
                (squares.sum::<f64>() / exact.iter().map(|(sum, _)| sum * sum).sum::<f64>()).sqrt()
            };
            let (bf16, int16) = (lost(Precision::Bf16), lost(Precision::Int16));
            assert!(int16 < bf16 / least, "{op:?} with a peak of {peak}: {int16:e} and {bf16:e} in bf16");
            assert!(int16 > 5e-5, "{op:?}: {int16:e} is no rounding to integers");
        }
    }
}

#[test]
fn quantised_weights_multiply_like_the_same_numbers_in_bf16() {
    for ty in BlockType::ALL {
        let b = ty.block_len().max(32);
        for (op, rows, cols, n) in
            [(Op::Nt, 45, 9 * 256, 33), (Op::Nt, 3, 7 * b, 5), (Op::Nn, 2101, b, 19), (Op::Nn, 65, 5 * b, 40)]
        {
            let case = Case::new(op, ty, rows, cols, n);
            let mut floats = vec![0.0; rows * cols];
            dequantize(ty, &case.data, &mut floats);
            let data = floats.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
            let plain = Case { ty: BlockType::BF16, data, ..case.clone() };
            for isa in isas() {
                let [got, wanted] = [&case, &plain].map(|case| case.run(isa, Precision::Bf16, 2, 1));
                let what = format!("{op:?} {} {} rows {rows} cols {cols} n {n}", isa.name(), ty.name());
                assert!(same_bits(&got, &wanted), "{what}: other bits than with bf16 weights");
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for (op, ty, rows, cols, n) in [
        (Op::Nt, BlockType::Q4_1, 133, 1312, 101),
        (Op::Nt, BlockType::F32, 16, 1111, 101),
        (Op::Nt, BlockType::Q4_0, 501, 928, 101),
        (Op::Nt, BlockType::Q4_0, 280, 2560, 40),
        (Op::Nt, BlockType::Q4_0, 72, 96, 390),
        (Op::Nn, BlockType::Q4_0, 2112, 64, 300),
        (Op::Nn, BlockType::Q4_0, 928, 480, 101),
        (Op::Nn, BlockType::Q4_K, 531, 256, 101),
        (Op::Nn, BlockType::F32, 16, 1111, 101),
        (Op::Tn, BlockType::F32, 601, 311, 16),
        (Op::Tn, BlockType::F32, 77, 96, 128),
    ] {
        let case = Case::new(op, ty, rows, cols, met_by(rows, cols, n));
        // The reference is slow, and shares its work in one way only, whatever there is of it.
        for isa in isas().filter(|&isa| isa != Isa::Scalar || !case.large()) {
            for precision in PRECISIONS {
                let one = case.run(isa, precision, 1, 2);
                for &threads in if isa == Isa::Scalar { &[3][..] } else { &[2, 4, 7] } {
                    let many = case.run(isa, precision, threads, 2);
                    assert!(same_bits(&one, &many), "{op:?} {} {precision:?} {threads} threads", isa.name());
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_batch() {
    for (op, ty) in [(Op::Nt, BlockType::Q4_0), (Op::Nn, BlockType::Q5_K), (Op::Nt, BlockType::F32)] {
        for isa in isas() {
            let (rows, cols) = if isa == Isa::Scalar { (29, 256) } else { (261, 1280) };
            let case = Case::new(op, ty, rows, cols, 37);
            let (k, width) = if op == Op::Nt { (cols, rows) } else { (rows, cols) };
            for precision in PRECISIONS {
                let all = case.run(isa, precision, 2, 1);
                for (i, len) in [(0, 1), (5, 1), (36, 1), (3, 16), (20, 17), (4, 33)] {
                    let part = Case { n: len, left: case.left[i * k..(i + len) * k].to_vec(), ..case.clone() };
                    let part = Case { before: vec![0.0; len * width], ..part };
                    let got = part.run(isa, precision, 1, 1);
                    let same = same_bits(&got, &all[i * width..(i + len) * width]);
                    assert!(same, "{op:?} {} {precision:?}: rows {i}..{}", isa.name(), i + len);
                }
            }
        }
    }
}

#[test]
fn a_sum_continued_in_pieces_has_the_bits_of_the_whole() {
    for isa in isas() {
        for precision in PRECISIONS {
            // The gradient of an adapter: the sum runs over tokens, which come in chunks.
            let whole = Case::new(Op::Tn, BlockType::F32, 1216, 523, 16);
            let (n, q, p) = (whole.rows, whole.cols, whole.n);
            let mut sums = Vec::new();
            for (i, cut) in [(0, 64), (64, 704), (704, 1184), (1184, n)].into_iter().enumerate() {
                let piece = Case {
                    rows: cut.1 - cut.0,
                    data: whole.data[cut.0 * q * 4..cut.1 * q * 4].to_vec(),
                    left: whole.left[cut.0 * p..cut.1 * p].to_vec(),
                    before: if i == 0 { whole.before.clone() } else { sums },
                    ..whole.clone()
                };
                sums = piece.run(isa, precision, 2, if i == 0 { 0 } else { 2 });
            }
            assert!(same_bits(&sums, &whole.run(isa, precision, 1, 0)), "tn {} {precision:?}", isa.name());

            // Rows of a weight that come in windows, for the gradient of its input.
            let whole = Case::new(Op::Nn, BlockType::Q4_1, 672, 288, 35);
            let row = BlockType::Q4_1.row_bytes(whole.cols).unwrap();
            let half = |from: usize, to: usize, before: Vec<f32>, start: usize| {
                let left = whole.left.chunks_exact(whole.rows).flat_map(|g| g[from..to].to_vec()).collect();
                let data = whole.data[from * row..to * row].to_vec();
                Case { rows: to - from, data, left, before, ..whole.clone() }.run(isa, precision, 2, start)
            };
            // A group of integers is in one piece.
            let cut = if precision == Precision::Int16 { 512 } else { 320 };
            let first = half(0, cut, whole.before.clone(), 1);
            let both = half(cut, 672, first, 2);
            assert!(same_bits(&both, &whole.run(isa, precision, 1, 1)), "nn {} {precision:?}", isa.name());
        }
    }
}

#[test]
fn matvec_matches_f64_and_has_the_same_bits_on_every_instruction_set() {
    for ty in BlockType::ALL {
        for (rows, blocks) in [(0, 1), (1, 1), (67, 5), (130, 41), (3, 64), (5, 133)] {
            let case = Case::new(Op::Nt, ty, rows, blocks * ty.block_len(), 1);
            let naive = case.naive(Precision::F32);
            for start in 0..3 {
                let mut bits = None;
                for isa in isas() {
                    for threads in [1, 3] {
                        let pool = Pool::new(threads).unwrap();
                        let mut ctx = Ctx { pool: &pool, isa, precision: Precision::F32, scratch: &mut [] };
                        let mut y = case.before.clone();
                        let w = Weight::new(ty, rows, case.cols, &case.data);
                        matmul::matvec(&mut ctx, w, &case.left, &mut y, case.start(start));
                        for (i, (y, (sum, size))) in y.iter().zip(&naive).enumerate() {
                            let first = case.first(start, i);
                            let (sum, size) = (first + sum, first.abs() + size);
                            assert!((f64::from(*y) - sum).abs() <= 1e-5 * size, "{} {}", isa.name(), ty.name());
                        }
                        assert!(same_bits(&y, bits.get_or_insert(y.clone())), "{} {}", isa.name(), ty.name());
                    }
                }
            }
        }
    }
}

#[test]
fn dequantised_rows_have_the_bits_of_the_reference() {
    for ty in BlockType::ALL {
        let mut random = Random(5);
        for blocks in [0, 1, 3, 40] {
            let len = blocks * ty.block_len();
            let mut data = random.blocks(ty, len);
            if ty == BlockType::F16 && blocks == 40 {
                // Zeros, subnormals, infinities and NaN.
                for (i, h) in
                    [0, 0x8000, 1, 0x83ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7e01, 0xfd00_u16].iter().enumerate()
                {
                    data[2 * i..2 * i + 2].copy_from_slice(&h.to_le_bytes());
                }
            }
            let mut expected = vec![f32::NAN; len];
            dequantize(ty, &data, &mut expected);
            for isa in isas() {
                let mut got = vec![f32::NAN; len];
                dequantize_row(isa, ty, &data, &mut got);
                assert!(same_bits(&got, &expected), "{} {} blocks of {}", isa.name(), blocks, ty.name());
            }
        }
    }
}

/// Whether a product that goes on with an adapter's has the bits of the two one after the other.
#[test]
fn an_adapter_continues_the_sum() {
    let mut random = Random(17);
    for (rows, cols, n, rank) in
        [(64, 96, 5, 8), (33, 32, 70, 16), (160, 1088, 40, 33), (96, 64, 33, 1), (31, 0, 3, 4), (32, 16_640, 3, 2)]
    {
        let w = random.floats(rows * cols);
        let w = Weight::f32(rows, cols, &w);
        for (inputs, outputs, forward) in [(cols, rows, true), (rows, cols, false)] {
            if outputs == 0 {
                continue;
            }
            let (x, h, factor) = (random.floats(n * inputs), random.floats(n * rank), random.floats(rank * outputs));
            let (bias, by) = (random.floats(outputs), random.floats(rank * inputs));
            for (isa, precision) in isas().flat_map(|isa| PRECISIONS.map(|precision| (isa, precision))) {
                for &threads in if isa == Isa::Scalar { &[3][..] } else { &[1, 3] } {
                    let pool = Pool::new(threads).unwrap();
                    let shape = Shape { ty: BlockType::F32, rows, cols, n, rank };
                    let scratch = if forward { matmul::nt_scratch } else { matmul::nn_scratch };
                    let mut scratch = vec![f32::NAN; scratch(shape, threads, isa, precision)];
                    let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
                    let mut run = |start, low_rank: Option<LowRank>| {
                        let mut y = vec![f32::NAN; n * outputs];
                        if forward {
                            matmul::nt(&mut ctx, w, &x, n, &mut y, start, low_rank);
                        } else {
                            matmul::nn(&mut ctx, w, &x, n, &mut y, start, low_rank);
                        }
                        y
                    };

                    let got = run(Start::Bias(&bias), Some(LowRank { low: Low::Given(&h), factor: &factor, rank }));
                    let mut made = vec![f32::NAN; n * rank];
                    let both = run(
                        Start::Bias(&bias),
                        Some(LowRank {
                            low: Low::Made { by: &by, scale: 0.5, into: &mut made },
                            factor: &factor,
                            rank,
                        }),
                    );
                    let (mut want, again) = (
                        run(Start::Bias(&bias), None),
                        run(Start::Bias(&bias), Some(LowRank { low: Low::Given(&made), factor: &factor, rank })),
                    );
                    assert!(same_bits(&both, &again), "{} {precision:?} made and then given", isa.name());
                    let by = Weight::f32(rank, inputs, &by);
                    let shape = Shape { ty: BlockType::F32, rows: rank, cols: inputs, n, rank: 0 };
                    let mut scratch = vec![f32::NAN; matmul::nt_scratch(shape, threads, isa, precision)];
                    let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
                    let mut h_alone = vec![f32::NAN; n * rank];
                    matmul::nt(&mut ctx, by, &x, n, &mut h_alone, Start::Zero, None);
                    h_alone.iter_mut().for_each(|x| *x *= 0.5);
                    assert!(same_bits(&made, &h_alone), "{} {precision:?} {rows}x{cols} rank {rank}", isa.name());
                    let factor = Weight::f32(rank, outputs, &factor);
                    let shape = Shape { ty: BlockType::F32, rows: rank, cols: outputs, n, rank: 0 };
                    let mut scratch = vec![f32::NAN; matmul::nn_scratch(shape, threads, isa, precision)];
                    let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
                    matmul::nn(&mut ctx, factor, &h, n, &mut want, Start::Output, None);
                    assert!(same_bits(&got, &want), "{} {precision:?} {rows}x{cols} rank {rank}", isa.name());
                }
            }
        }
    }
}

#[test]
fn one_more_product_of_the_same_input_has_the_same_bits() {
    let mut random = Random(23);
    // One block of rows and several, one block of the sum and several, and an input that is too large to be held; rank 0 means no adapter.
    for (cols, n, rank) in [(96, 5, 8), (64, 70, 0), (64, 530, 16), (2080, 33, 0), (2080, 33, 4), (2080, 1100, 0)] {
        let x = random.floats(n * cols);
        let weights = [(40, random.floats(40 * cols)), (136, random.floats(136 * cols))];
        let factors = weights.each_ref().map(|(rows, _)| (random.floats(rank * rows), random.floats(rank * cols)));
        let h = random.floats(n * rank);
        // AMX alone holds inputs that come near the largest, and the reference none at all.
        let isas =
            isas().filter(|&isa| n < 1000 || isa == Isa::Amx).filter(|&isa| n * cols < 10_000 || isa != Isa::Scalar);
        for (isa, precision) in isas.flat_map(|isa| PRECISIONS.map(|precision| (isa, precision))) {
            let mut made_by_one = None;
            for (threads, make) in [(1, true), (3, true), (2, false)] {
                let pool = Pool::new(threads).unwrap();
                let shape = Shape { ty: BlockType::F32, rows: 136, cols, n, rank };
                let mut scratch = vec![f32::NAN; matmul::nt_scratch(shape, threads, isa, precision)];
                let mut run = |which: usize, again: bool| {
                    let ((rows, w), (factor, by)) = (&weights[which], &factors[which]);
                    if again {
                        // What is behind may have served something else.
                        scratch[matmul::nt_held(shape, isa, precision)..].fill(f32::NAN);
                    }
                    let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut scratch };
                    let (mut y, mut into) = (vec![f32::NAN; n * rows], vec![f32::NAN; n * rank]);
                    let low = if make { Low::Made { by, scale: 0.5, into: &mut into } } else { Low::Given(&h) };
                    let low_rank = (rank > 0).then_some(LowRank { low, factor, rank });
                    let (w, x) = (Weight::f32(*rows, cols, w), (Values::F32(&x), n));
                    matmul::nt_values(&mut ctx, w, x, ValuesMut::F32(&mut y), Start::Zero, low_rank, again);
                    y
                };
                let want = [0, 1].map(|which| run(which, false));
                let one = made_by_one.get_or_insert_with(|| want.clone());
                let same = !make || one.iter().zip(&want).all(|(one, want)| same_bits(one, want));
                assert!(same, "{} {precision:?} {cols}, {n} rows, {threads} threads", isa.name());
                for order in [[0, 1], [1, 0]] {
                    let got = [run(order[0], false), run(order[1], true)];
                    for (which, got) in order.into_iter().zip(got) {
                        assert!(same_bits(&got, &want[which]), "{} {precision:?} {cols}, {n} rows", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn scratch_grows_with_n_only_and_stays_small() {
    let f = |n, rank, isa, precision| {
        let shape = |rows, cols| Shape { ty: BlockType::Q4_K, rows, cols, n, rank };
        let nt = |rows, cols| matmul::nt_scratch(shape(rows, cols), 8, isa, precision);
        let nn = |rows, cols| matmul::nn_scratch(shape(rows, cols), 8, isa, precision);
        let tn = matmul::tn_scratch(n, 128, 11008, 8, isa, precision);
        [nt(151_936, 11_008), nn(151_936, 11_008), nt(8, 256), nn(8, 256), tn]
    };
    for &isa in Isa::ALL {
        for precision in PRECISIONS {
            // AMX holds up to 5 Mi numbers of bf16 of the left operand, and for each of eight threads sums and tiles of some 1.5 MB.
            let tiles = isa == Isa::Amx && precision == Precision::Bf16;
            for (rank, most) in
                [(0, if tiles { 6 << 20 } else { 2 << 20 }), (16, if tiles { 6 << 20 } else { 4 << 20 })]
            {
                let mut last = f(0, rank, isa, precision);
                for n in [1, 2, 7, 33, 100, 288, 300, 512, 513, 1024, 1025, 1100, 2048, 2049, 4096, 100_000] {
                    let now = f(n, rank, isa, precision);
                    for (last, now) in last.iter().zip(now) {
                        assert!(now >= *last, "{} {precision:?} n {n}: {now} after {last}", isa.name());
                        assert!(now <= most, "{} {precision:?} n {n} rank {rank}: {now} elements", isa.name());
                    }
                    last = now;
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "length of x")]
fn an_input_of_the_wrong_length_is_refused() {
    let mut case = Case::new(Op::Nt, BlockType::F32, 4, 5, 3);
    case.left.pop();
    case.run(Isa::Scalar, Precision::F32, 1, 0);
}

#[test]
#[should_panic(expected = "bytes of a q4_1 matrix of 3 rows and 64 columns")]
fn a_weight_of_the_wrong_length_is_refused() {
    Weight::new(BlockType::Q4_1, 3, 64, &[0; 119]);
}
