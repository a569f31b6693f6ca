//! VeRA's adapters between their file and the arena: two matrices that all modules share, and two vectors of each.

use std::io::Write;

use pocketune_formats::lora::{LoraFile, Pair, Part};
use pocketune_formats::peft::{SHARED, TensorSpec, vector_names};
use pocketune_kernels::philox::Philox;

use crate::backend::Cpu;
use crate::error::{Error, Result};
use crate::graph::{Graph, Module, Of, Param, ParamId};

/// The stream of random numbers that A comes from; the next is B's.
const STREAM: u64 = 1 << 33;

/// What its paper and PEFT begin the vector on the rank with.
const D_INITIAL: f32 = 0.1;

/// A and B uniform as PEFT draws them (Kaiming's bound, `sqrt(6 / inputs)`), if not of its numbers; one vector a constant, the other zero, so that nothing changes
/// at first.
pub(super) fn initialise(cpu: &mut Cpu, graph: &Graph, seed: u64) {
    let rank = graph.params[0].cols;
    for (id, stream) in [(0, STREAM), (1, STREAM + 1)] {
        let numbers = Philox::new(seed, stream);
        let inputs = if id == 0 { graph.params[0].rank } else { rank };
        let bound = (6.0 / inputs as f32).sqrt();
        for (i, x) in cpu.param_mut(ParamId(id)).iter_mut().enumerate() {
            *x = (2.0 * numbers.uniform(i as u64) - 1.0) * bound;
        }
    }
    for [d, b] in graph.modules.iter().filter_map(|module| module.lambdas) {
        cpu.param_mut(d).fill(D_INITIAL);
        cpu.param_mut(b).fill(0.0);
    }
}

/// Reads the vectors of a module, and what it takes of the shared matrices.
pub(super) fn load(
    cpu: &mut Cpu,
    graph: &Graph,
    module: &Module,
    adapter: &LoraFile,
    pair: &Pair,
    fault: &dyn Fn(String) -> Error,
) -> Result<()> {
    let Some([d, b]) = module.lambdas else { return Ok(()) };
    let rank = graph.params[d.0].cols;
    if !pair.is_shared() || (pair.rank, pair.rows) != (rank, module.rows) || pair.cols < module.cols {
        return Err(fault(format!(
            "module {} changes a matrix of {} x {} by rank {}, and the model's has {} x {}",
            module.path, pair.rows, pair.cols, pair.rank, module.rows, module.cols
        )));
    }
    for (id, part) in [(module.a, Part::A), (module.b, Part::B), (d, Part::LambdaD), (b, Part::LambdaB)] {
        let to = cpu.param_mut(id);
        adapter.each(pair, part, |row, col, x| match part {
            Part::A if col < module.cols => to[col * rank + row] = x,
            Part::A => {}
            Part::B => to[row * rank + col] = x,
            Part::LambdaB => to[module.file_row(row)] = x,
            _ => to[row] = x,
        });
        if let (Some(x), Some(info)) = (to.iter().find(|x| !x.is_finite()), adapter.tensor(pair, part)) {
            return Err(fault(format!("tensor {} holds {x}", info.name)));
        }
    }
    Ok(())
}

/// The shared matrices in the file; none of other adapters.
pub(super) fn shared(graph: &Graph) -> Vec<TensorSpec> {
    let shared = graph.params.iter().filter(|param| param.of == Of::Shared);
    let shapes = shared.enumerate().map(|(at, param)| match at {
        0 => vec![param.cols, param.rank],
        _ => vec![param.rank, param.cols],
    });
    SHARED.into_iter().zip(shapes).map(|(name, shape)| TensorSpec { name: name.into(), shape }).collect()
}

/// The vectors of a module in the file.
pub(super) fn vectors(graph: &Graph, module: &Module) -> impl Iterator<Item = TensorSpec> {
    let lens = module.lambdas.into_iter().flatten().map(|id| graph.params[id.0].cols);
    lens.collect::<Vec<_>>()
        .into_iter()
        .zip(vector_names(&module.path))
        .map(|(len, name)| TensorSpec { name, shape: vec![len] })
}

/// Writes one of the shared matrices: A is held transposed.
pub(super) fn write_shared(values: &[f32], held: Param, first: bool, out: &mut dyn Write) -> std::io::Result<()> {
    if !first {
        return out.write_all(bytemuck::cast_slice(values));
    }
    let (inputs, rank) = (held.rank, held.cols);
    (0..rank * inputs).try_for_each(|i| out.write_all(&values[i % inputs * rank + i / inputs].to_le_bytes()))
}
