//! Matrices as bitsandbytes and MLX pack them: every instruction set reads the bits of the reference, from any element on, and products with them
//! are those with the floats that they stand for.

use half::{bf16, f16};
use pocketune_kernels::blocks::{Floats, Meaning, Packed, Scales};
use pocketune_kernels::dequant::{Source, dequantize};
use pocketune_kernels::matmul::{self, Ctx, Precision, Shape, Start, Weight, counted_as};
use pocketune_kernels::philox::Philox;
use pocketune_kernels::{BlockType, Isa, Pool};

const FLOATS: [BlockType; 3] = [BlockType::F32, BlockType::F16, BlockType::BF16];

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.iter().copied().filter(|isa| isa.available())
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let random = Philox::new(seed, 0);
    (0..len as u64).map(|at| random.at(at)[0] as u8).collect()
}

/// Between -1 and 1.
fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let random = Philox::new(seed, 1);
    (0..len as u64).map(|at| random.at(at)[0] as i32 as f32 / 2_f32.powi(31)).collect()
}

fn floats(ty: BlockType, seed: u64, len: usize) -> Floats<Vec<u8>> {
    let bytes = |x: f32| match ty {
        BlockType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        BlockType::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    };
    Floats { ty, data: numbers(seed, len).into_iter().flat_map(bytes).collect() }
}

/// Every way to pack `elements` numbers.
fn packings(elements: usize) -> Vec<Packed<Vec<u8>>> {
    let mut all = Vec::new();
    for (bits, run) in [(4, 32), (4, 64), (4, 128), (4, 16), (2, 32), (8, 64)] {
        let runs = elements.div_ceil(run);
        for ty in FLOATS {
            let meaning = Meaning::Affine { scales: floats(ty, 2, runs), biases: floats(ty, 3, runs) };
            all.push(Packed { integers: bytes(1, elements * bits / 8), bits, run, meaning });
        }
    }
    for (run, rounded) in [32, 64, 4096].into_iter().flat_map(|run| FLOATS.map(|ty| (run, ty))) {
        let runs = elements.div_ceil(run);
        let nested = Scales::Nested {
            integers: bytes(4, runs),
            table: floats(BlockType::F32, 5, 256),
            run: 3,
            scales: floats(BlockType::F32, 6, runs.div_ceil(3)),
            offset: 0.125,
        };
        for scales in [Scales::Plain(floats(BlockType::F32, 7, runs)), nested] {
            let meaning = Meaning::Table { table: floats(BlockType::F32, 8, 16), scales, rounded };
            all.push(Packed { integers: bytes(9, elements / 2), bits: 4, run, meaning });
        }
    }
    all
}

fn same_bits(got: &[f32], expected: &[f32]) -> bool {
    got.iter().zip(expected).all(|(got, expected)| got.to_bits() == expected.to_bits())
}

#[test]
fn every_instruction_set_reads_the_bits_of_the_reference_from_any_element_on() {
    for packed in packings(8192) {
        let packed = packed.map(|bytes| &bytes[..]);
        for (at, len) in [(0, 8192), (0, 0), (32, 64), (64, 31), (16, 48), (5, 100), (4064, 96), (8191, 1)] {
            let mut expected = vec![f32::NAN; len];
            packed.read(at, &mut expected);
            for isa in isas() {
                let mut got = vec![f32::NAN; len];
                dequantize(isa, Source::Packed(&packed, at), &mut got);
                assert!(same_bits(&got, &expected), "{} {at} {len} {} bits in {}", isa.name(), packed.bits, packed.run);
            }
        }
    }
}

/// `x Wᵀ`, `g W` and `W x` for some rows of `w`.
fn products(isa: Isa, precision: Precision, threads: usize, w: Weight) -> Vec<f32> {
    const N: usize = 35;
    let pool = Pool::new(threads).unwrap();
    let shape = Shape { ty: w.ty, rows: w.rows, cols: w.cols, n: N, rank: 0 };
    let forward = matmul::nt_scratch(shape, threads, isa, precision);
    let backward = matmul::nn_scratch(shape, threads, isa, precision);
    let (x, g) = (numbers(11, N * w.cols), numbers(12, N * w.rows));
    let mut out = vec![f32::NAN; N * (w.rows + w.cols) + w.rows];
    let (y, rest) = out.split_at_mut(N * w.rows);
    let (gx, one) = rest.split_at_mut(N * w.cols);
    let mut scratch = vec![f32::NAN; forward];
    matmul::nt(&mut Ctx { pool: &pool, isa, precision, scratch: &mut scratch }, w, &x, N, y, Start::Zero, None);
    let mut scratch = vec![f32::NAN; backward];
    matmul::nn(&mut Ctx { pool: &pool, isa, precision, scratch: &mut scratch }, w, &g, N, gx, Start::Zero, None);
    let mut ctx = Ctx { pool: &pool, isa, precision, scratch: &mut [] };
    matmul::matvec(&mut ctx, w, &x[..w.cols], one, Start::Zero);
    out
}

#[test]
fn products_with_a_packed_matrix_have_the_bits_of_those_with_its_floats() {
    // Rows that runs divide, and some that they don't.
    for (rows, cols) in [(70, 192), (41, 40), (33, 288)] {
        for (number, packed) in packings(rows * cols).into_iter().enumerate().step_by(4) {
            let packed = packed.map(|bytes| &bytes[..]);
            let mut plain = vec![f32::NAN; rows * cols];
            packed.read(0, &mut plain);
            let ty = counted_as(rows, cols, rows * cols * 5 / 8);
            let packed = Weight::packed(ty, rows, cols, packed).part(3..rows);
            let plain = Weight::f32(rows, cols, &plain).part(3..rows);
            for isa in isas() {
                for precision in Precision::ALL {
                    let expected = products(isa, precision, 1, plain);
                    for threads in [1, 3] {
                        let got = products(isa, precision, threads, packed);
                        assert!(same_bits(&got, &expected), "{} {precision:?} {rows} {cols} {number}", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_matrix_counts_as_is_never_smaller() {
    assert_eq!(counted_as(2, 64, 72), BlockType::Q4_0);
    assert_eq!(counted_as(2, 64, 73), BlockType::Q4_1);
    assert_eq!(counted_as(2, 64, 97), BlockType::Q8_0);
    assert_eq!(counted_as(2, 40, 45), BlockType::BF16);
}
