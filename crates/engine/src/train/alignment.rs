//! How well what a run goes along points to where the exact gradient does: the cosine between the two, for the first batches of a run, at the
//! adapter that the run starts with. A measurement on its own, outside of any budget; no run depends on it.

use super::{Batches, LoraChoice, Passes, Rows, TrainOptions, Zeroth, adapter, prepare};
use crate::backend::{Cpu, MOST_DIRECTIONS, Noise, Weights};
use crate::error::Result;
use crate::graph::{Derivatives, Graph, LoraSpec, ParamId};
use crate::model::Model;
use crate::plan::{Layout, Mode, Policy, PolicyName, Program, Request, States, compile};
use crate::store::TokenFile;

/// The mean cosine over `batches` batches; exact methods have 1 for what they train, also where that is some blocks at a time, and methods that move all parameters of a model without gradients no number.
///
/// # Errors
/// Whatever is wrong with options, files, data or the system.
pub fn alignment(options: &TrainOptions, batches: usize) -> Result<f64> {
    options.check()?;
    let zeroth = options.method.zeroth();
    if zeroth.is_none() && options.drop_backward == 0.0 && options.derivatives.exact() {
        return Ok(1.0);
    }
    // All gradients of a model at once would be as large as the model.
    if options.trains_all() {
        return Ok(f64::NAN);
    }
    let model = Model::open(&options.model)?;
    model.check_reading(&options.data.reading)?;
    let data = prepare(&model, &options.data, options.max_seq_length, options.spill_folder())?;
    let (spec, saved) = match &options.lora {
        LoraChoice::New(spec) => (spec.clone(), None),
        LoraChoice::From(folder) => {
            let saved = adapter::open(folder)?;
            (adapter::spec(folder, &saved)?, Some((folder, saved)))
        }
    };
    let lora = options.adapt(spec, saved.is_some())?;
    // Both have the same matrices; they differ in what a derivative reads.
    let graph = model.config.graph(Some(&LoraSpec { derivatives: Derivatives::default(), ..lora.clone() }))?;
    let other = model.config.graph(Some(&lora))?;
    let weights = Weights::bind(model.files, &model.config, &graph)?;
    let (stored, machine, length) = (weights.stored(), options.run.machine()?, data.longest());
    let (tokens, policy) = (options.batch_size * length, Policy::named(PolicyName::Block));
    let request = |graph, mode| Request { graph, stored: &stored, tokens, machine, policy, mode, states: States::None };
    let exact = compile(request(&graph, Mode::Accumulate));
    let taken = compile(request(&other, if zeroth.is_some() { Mode::Perturb } else { Mode::Accumulate }));
    let layout = Layout::new(&graph, States::None, false, length, Mode::Accumulate, 0);
    let mut cpu = Cpu::new(machine, weights, &graph, layout, &[&exact, &taken], options.spill_folder())?;
    match saved {
        Some((folder, saved)) => adapter::load(&mut cpu, &graph, &model.config, folder, &saved)?,
        None => adapter::initialise(&mut cpu, &graph, options.seed),
    }
    let file = &data.train.tokens;
    let mut passes = Passes::plain(Batches::new(file.len(), options.shuffle, options.seed), options.batch_size);
    let mut rows = Rows::with_capacity(options.batch_size, tokens, length).with_cloze(data.cloze.clone());
    let step = passes.step();
    let mut sum = 0.0;
    for at in 0..batches {
        let records = passes.records(at as u64 * step, file);
        rows.fill(file, records.iter().map(|&record| record as usize))?;
        cpu.drop_blocks(0.0, 0, 0);
        let gradient = gradient(&mut cpu, &graph, &exact, &rows)?;
        let estimate = match zeroth {
            Some(zeroth) => estimate(&mut cpu, &graph, &taken, zeroth, (options, at + 1), (file, records), &mut rows)?,
            None => {
                cpu.drop_blocks(options.drop_backward, options.seed, at as u64 + 1);
                self::gradient(&mut cpu, &graph, &taken, &rows)?
            }
        };
        sum += cosine(&gradient, &estimate);
    }
    Ok(sum / batches.max(1) as f64)
}

/// The gradients of a batch, one matrix after another.
fn gradient(cpu: &mut Cpu, graph: &Graph, program: &Program, rows: &Rows) -> Result<Vec<f64>> {
    cpu.clear_grads();
    cpu.run(program, rows.batch(rows.targets(), Noise::default()), 0, None)?;
    Ok((0..graph.params.len()).flat_map(|id| cpu.grad(ParamId(id)).iter().map(|&g| f64::from(g))).collect())
}

/// `Σ c z` for the same records, in the directions of an update.
fn estimate(
    cpu: &mut Cpu,
    graph: &Graph,
    program: &Program,
    zeroth: Zeroth,
    (options, update): (&TrainOptions, usize),
    (file, records): (&TokenFile, &[u32]),
    rows: &mut Rows,
) -> Result<Vec<f64>> {
    let (groups, eps) = (zeroth.sides.groups(), options.zo_eps());
    cpu.aim(zeroth.aim(options.seed, update, eps), graph);
    cpu.clear_sums();
    let mut unit = 0;
    while unit < records.len() * groups {
        unit = rows.fill_groups(file, records, groups, unit, program.tokens)?;
        cpu.run(program, rows.batch(rows.targets(), Noise::default()), 0, None)?;
    }
    let losses: Vec<f64> = (0..groups).map(|group| cpu.sum(group).mean_loss()).collect();
    let mut far = [0.0; MOST_DIRECTIONS];
    zeroth.judge(&losses, eps, &mut far);
    let mut all = Vec::new();
    for (id, param) in graph.params.iter().enumerate() {
        let (mut along, mut z) = (vec![0.0; param.len()], vec![0.0; param.len()]);
        for (direction, far) in far[..zeroth.sides.directions()].iter().enumerate() {
            cpu.direction(ParamId(id), direction, &mut z);
            along.iter_mut().zip(&z).for_each(|(along, &z)| *along += far * f64::from(z));
        }
        all.extend(along);
    }
    Ok(all)
}

/// 0 where one of them is nothing.
fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}
