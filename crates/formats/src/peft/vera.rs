//! The tensors of a VeRA adapter: `vera_A` and `vera_B`, which all modules share, and two vectors of each module.

use std::collections::BTreeMap;

use super::{AdapterConfig, PREFIX, Problem};
use crate::lora::Parts;
use crate::tensor::TensorInfo;

/// The names of A, `[r, largest in]`, and B, `[largest out, r]`.
pub const SHARED: [&str; 2] = ["base_model.vera_A", "base_model.vera_B"];

/// Of the vectors on the rank and on the outputs.
const SUFFIXES: [&str; 2] = [".vera_lambda_d", ".vera_lambda_b"];

/// The names of the two vectors of the module at `path`.
pub fn vector_names(path: &str) -> [String; 2] {
    SUFFIXES.map(|suffix| format!("{PREFIX}{path}{suffix}"))
}

/// Finds both vectors of every module and checks all shapes against each other.
pub(super) fn parts(tensors: &[TensorInfo], config: &AdapterConfig) -> Result<BTreeMap<String, Parts>, Problem> {
    let at = |name: &'static str| {
        let found = tensors.iter().position(|info| *info.name == *name);
        found.ok_or(Problem::NotShared { tensor: name })
    };
    let [a, b] = [at(SHARED[0])?, at(SHARED[1])?];
    let rank = config.rank;
    let check = |info: &TensorInfo, fine: bool, wanted: &str| match fine {
        true => Ok(()),
        false => {
            let (tensor, found) = (info.name.to_string(), info.shape.as_ref().into());
            Err(Problem::VeraShape { tensor, found, wanted: wanted.into() })
        }
    };
    check(&tensors[a], matches!(*tensors[a].shape, [r, cols] if r == rank && cols > 0), &format!("[{rank}, in]"))?;
    let rows = if let [rows, r] = *tensors[b].shape { Some(rows).filter(|_| r == rank) } else { None };
    check(&tensors[b], rows.is_some(), &format!("[out, {rank}]"))?;
    let mut found: BTreeMap<&str, [Option<usize>; 2]> = BTreeMap::new();
    for (at, info) in tensors.iter().enumerate().filter(|(at, _)| ![a, b].contains(at)) {
        let path = info.name.strip_prefix(PREFIX);
        let vector = path.and_then(|path| {
            let mut suffixes = SUFFIXES.iter().enumerate();
            suffixes.find_map(|(which, suffix)| Some((path.strip_suffix(suffix)?, which)))
        });
        let (module, which) = vector.ok_or_else(|| Problem::NotVera { tensor: info.name.to_string() })?;
        let fine = match (which, &*info.shape) {
            (0, &[len]) => len == rank,
            (_, &[len]) => len > 0 && rows.is_some_and(|rows| len <= rows),
            _ => false,
        };
        let wanted = if which == 0 { format!("[{rank}]") } else { format!("at most [{}]", rows.unwrap_or(0)) };
        check(info, fine, &wanted)?;
        found.entry(module).or_default()[which] = Some(at);
    }
    if found.is_empty() {
        return Err(Problem::NoTensors);
    }
    let modules = found.into_iter().map(|(module, vectors)| match vectors {
        [Some(d), Some(of_b)] => Ok((module.into(), Parts { a, b, magnitude: None, vectors: Some([d, of_b]) })),
        [d, _] => {
            let (has, lacks) = if d.is_some() { ('d', 'b') } else { ('b', 'd') };
            Err(Problem::OneVector { module: module.into(), has, lacks })
        }
    });
    modules.collect()
}
