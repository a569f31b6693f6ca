//! How well what a method goes along points to where the exact gradient does: the cosine between the two, for the first batches of a run, at the
//! adapter that the run starts with. A measurement on its own, outside of any budget; no run depends on it.

use super::{Batches, LoraChoice, Passes, Rows, TrainOptions, adapter, prepare};
use crate::backend::{Cpu, MOST_DIRECTIONS, Noise, Weights};
use crate::error::Result;
use crate::graph::{Graph, ParamId};
use crate::model::Model;
use crate::plan::{Layout, Mode, Policy, PolicyName, Request, States, compile};

/// The mean cosine over `batches` batches; exact methods have 1 for what they train.
///
/// # Errors
/// Whatever is wrong with options, files, data or the system.
pub fn alignment(options: &TrainOptions, batches: usize) -> Result<f64> {
    options.check()?;
    let Some(zeroth) = options.method.zeroth() else { return Ok(1.0) };
    let model = Model::open(&options.model)?;
    model.check_next_token()?;
    let data = prepare(&model, &options.data, options.max_seq_length, options.spill_folder())?;
    let (spec, saved) = match &options.lora {
        LoraChoice::New(spec) => (spec.clone(), None),
        LoraChoice::From(folder) => {
            let saved = adapter::open(folder)?;
            (adapter::spec(folder, &saved)?, Some((folder, saved)))
        }
    };
    let graph = model.config.graph(Some(&options.method.adapt(spec, saved.is_some())?))?;
    let weights = Weights::bind(model.files, &model.config, &graph)?;
    let (stored, machine, length) = (weights.stored(), options.run.machine()?, data.longest());
    let (tokens, policy) = (options.batch_size * length, Policy::named(PolicyName::Block));
    let request =
        |mode| Request { graph: &graph, stored: &stored, tokens, machine, policy, mode, states: States::None };
    let [exact, moved] = [Mode::Accumulate, Mode::Perturb].map(|mode| compile(request(mode)));
    let layout = Layout::new(&graph, States::None, false, length, Mode::Accumulate, 0);
    let mut cpu = Cpu::new(machine, weights, &graph, layout, &[&exact, &moved], options.spill_folder())?;
    match saved {
        Some((folder, saved)) => adapter::load(&mut cpu, &graph, &model.config, folder, &saved)?,
        None => adapter::initialise(&mut cpu, &graph, options.seed),
    }
    let file = &data.train.tokens;
    let mut passes = Passes::plain(Batches::new(file.len(), options.shuffle, options.seed), options.batch_size);
    let mut rows = Rows::with_capacity(options.batch_size, tokens, length);
    let (groups, eps, step) = (zeroth.sides.groups(), options.zo_eps(), passes.step());
    let mut sum = 0.0;
    for at in 0..batches {
        let records = passes.records(at as u64 * step, file);
        rows.fill(file, records.iter().map(|&record| record as usize))?;
        cpu.clear_grads();
        cpu.run(&exact, rows.batch(rows.targets(), Noise::default()), 0, None)?;
        cpu.aim(zeroth.aim(options.seed, at + 1, eps), &graph);
        cpu.clear_sums();
        let mut unit = 0;
        while unit < records.len() * groups {
            unit = rows.fill_groups(file, records, groups, unit, tokens)?;
            cpu.run(&moved, rows.batch(rows.targets(), Noise::default()), 0, None)?;
        }
        let losses: Vec<f64> = (0..groups).map(|group| cpu.sum(group).mean_loss()).collect();
        let mut far = [0.0; MOST_DIRECTIONS];
        zeroth.judge(&losses, eps, &mut far);
        sum += cosine(&cpu, &graph, &far[..zeroth.sides.directions()]);
    }
    Ok(sum / batches.max(1) as f64)
}

/// Between the gradient sums and `Σ far z`; 0 where one of them is nothing.
fn cosine(cpu: &Cpu, graph: &Graph, far: &[f64]) -> f64 {
    let (mut dot, mut one, mut other) = (0.0, 0.0, 0.0);
    for id in (0..graph.params.len()).map(ParamId) {
        let gradient = cpu.grad(id);
        let (mut along, mut z) = (vec![0.0; gradient.len()], vec![0.0; gradient.len()]);
        for (direction, far) in far.iter().enumerate() {
            cpu.direction(id, direction, &mut z);
            along.iter_mut().zip(&z).for_each(|(along, &z)| *along += far * f64::from(z));
        }
        for (&gradient, along) in gradient.iter().zip(along) {
            dot += f64::from(gradient) * along;
            one += f64::from(gradient).powi(2);
            other += along * along;
        }
    }
    let lengths = (one * other).sqrt();
    if lengths > 0.0 { dot / lengths } else { 0.0 }
}
