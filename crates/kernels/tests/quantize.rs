//! Quantisation: against the `gguf` Python package byte for byte where it has a quantiser (`oracle/quantize.py` wrote the golden file),
//! and against a plain fit of the range where it has none; on every instruction set of this processor.

use std::path::Path;

use pocketune_kernels::Isa;
use pocketune_kernels::blocks::{BlockType, dequantize, largest, quantize};
use pocketune_kernels::philox::Philox;

const OF_256: [BlockType; 3] = [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K];

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.iter().copied().filter(|isa| isa.available())
}

fn quantized(isa: Isa, ty: BlockType, x: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0xA5; ty.row_bytes(x.len()).unwrap()];
    quantize(isa, ty, x, &mut blocks);
    blocks
}

fn round_trip(ty: BlockType, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len()];
    dequantize(ty, &quantized(Isa::Scalar, ty, x), &mut y);
    y
}

fn square_error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}

#[test]
fn types_of_32_have_the_bytes_of_the_gguf_package() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quantized.bin");
    let file = std::fs::read(path).unwrap();
    let types = [
        BlockType::F16,
        BlockType::BF16,
        BlockType::Q8_0,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
    ];
    // 32 elements and their bytes in all types.
    let rows = file.len() / (4 * 32 + types.iter().map(|ty| ty.row_bytes(32).unwrap()).sum::<usize>());
    let (x, mut rest) = file.split_at(rows * 32 * 4);
    let x: Vec<f32> = x.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    for ty in types {
        let (want, after) = rest.split_at(ty.row_bytes(x.len()).unwrap());
        for isa in available() {
            let got = quantized(isa, ty, &x);
            for (row, (got, want)) in got.chunks(want.len() / rows).zip(want.chunks(want.len() / rows)).enumerate() {
                assert_eq!(got, want, "{} of row {row} on {}", ty.name(), isa.name());
            }
        }
        rest = after;
    }
    assert!(rest.is_empty() && rows > 32);
}

/// Rows of 1,024 elements: normal, uniform, heavy-tailed, shifted, with one outlier in each block, sparse.
fn distributions() -> Vec<(&'static str, Vec<f32>)> {
    let uniform = |seed| (0..1024).map(|at| Philox::new(seed, 0).uniform(at) - 0.5).collect::<Vec<f32>>();
    let all: Vec<Vec<f32>> = (0..12).map(uniform).collect();
    let normal: Vec<f32> = (0..1024).map(|i| all.iter().map(|x| x[i]).sum()).collect();
    let with = |f: &dyn Fn(usize, f32) -> f32| normal.iter().enumerate().map(|(i, x)| f(i, *x)).collect::<Vec<f32>>();
    vec![
        ("uniform", all[0].clone()),
        ("heavy", with(&|_, x| 0.02 * x * x * x)),
        ("shifted up", with(&|_, x| 0.1 * x + 0.3)),
        ("shifted down", with(&|_, x| 0.1 * x - 0.3)),
        ("outliers", with(&|i, x| if i % 256 == 77 { 40.0 } else { x })),
        ("sparse", with(&|i, x| if i % 7 == 0 { x } else { 0.0 })),
        ("small", with(&|_, x| 1e-3 * x)),
        ("normal", normal.clone()),
    ]
}

/// What a fit of each group's range gives, its scale and minimum rounded as the layout wants them.
fn plain_fit(ty: BlockType, x: &[f32]) -> Vec<f32> {
    let half = |x: f32| half::f16::from_f32(x).to_f32();
    let mut y = Vec::new();
    for block in x.chunks(256) {
        if ty == BlockType::Q6_K {
            let extreme = |x: &[f32]| x.iter().fold(0.0_f32, |most, x| if x.abs() > most.abs() { *x } else { most });
            let steps: Vec<f32> = block.chunks(16).map(|group| extreme(group) / -32.0).collect();
            let d = half(extreme(&steps) / -128.0);
            for (group, step) in block.chunks(16).zip(&steps) {
                let step = d * (step / d).round().clamp(-128.0, 127.0);
                y.extend(group.iter().map(|x| step * (x / step).round().clamp(-32.0, 31.0)));
            }
            continue;
        }
        let most = if ty == BlockType::Q4_K { 15.0 } else { 31.0 };
        let range = |group: &[f32]| group.iter().fold((0.0_f32, f32::MIN), |(l, h), x| (l.min(*x), h.max(*x)));
        let fits: Vec<(f32, f32)> =
            block.chunks(32).map(range).map(|(low, high)| ((high - low) / most, -low)).collect();
        let d = half(fits.iter().fold(0.0_f32, |most, fit| most.max(fit.0)) / 63.0);
        let m = half(fits.iter().fold(0.0_f32, |most, fit| most.max(fit.1)) / 63.0);
        for (group, (scale, minimum)) in block.chunks(32).zip(fits) {
            let scale = d * (scale / d).round().min(63.0);
            let minimum = if m == 0.0 { 0.0 } else { m * (minimum / m).round().min(63.0) };
            y.extend(group.iter().map(|x| scale * ((x + minimum) / scale).round().clamp(0.0, most) - minimum));
        }
    }
    y
}

#[test]
fn types_of_256_err_less_than_a_fit_of_the_range() {
    for ty in OF_256 {
        for (name, x) in distributions() {
            let (ours, plain) = (square_error(&x, &round_trip(ty, &x)), square_error(&x, &plain_fit(ty, &x)));
            assert!(ours < plain && ours > 0.0, "{} of {name}: {ours:e}, and the range's fit has {plain:e}", ty.name());
        }
    }
}

#[test]
fn more_bits_err_less_and_every_type_stays_near() {
    let order = [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::Q8_0];
    let (_, normal) = distributions().pop().unwrap();
    let power = square_error(&normal, &vec![0.0; normal.len()]);
    let errors = order.map(|ty| (square_error(&normal, &round_trip(ty, &normal)) / power).sqrt());
    assert!(errors.is_sorted_by(|a, b| a > b), "{errors:?}");
    assert!(errors[0] < 0.1 && errors[2] < 0.075 && errors[5] < 0.006, "{errors:?}");
}

#[test]
fn every_instruction_set_writes_the_same_bytes() {
    for ty in BlockType::ALL {
        for (name, x) in distributions() {
            let want = quantized(Isa::Scalar, ty, &x);
            assert!(available().all(|isa| quantized(isa, ty, &x) == want), "{} of {name}", ty.name());
        }
    }
}

#[test]
fn rows_without_a_range_and_rows_at_the_limits_come_back() {
    for ty in BlockType::ALL {
        for value in [0.0, 1.0, -1.0, 0.03, -0.03] {
            for y in round_trip(ty, &[value; 256]) {
                assert!((y - value).abs() <= 0.002 * value.abs(), "{}: {value} became {y}", ty.name());
            }
        }
        for x in [largest(ty), -largest(ty), 1e-30, f32::MIN_POSITIVE, 1e-44] {
            let mut row = [0.0; 256];
            row[100] = x;
            assert!(round_trip(ty, &row).iter().all(|y| y.is_finite()), "{} of {x}", ty.name());
            row.fill(x);
            assert!(round_trip(ty, &row).iter().all(|y| y.is_finite()), "{} of {x}", ty.name());
        }
    }
}
