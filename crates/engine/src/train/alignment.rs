//! How well what a run goes along points to where the exact gradient does: the cosine between the two, for the first batches of a run, at the
//! adapter or the model that the run starts with. A measurement on its own, outside of any budget; no run depends on it.

use super::whole::check_floats;
use super::{Batches, LoraChoice, Passes, Prepared, Rows, TrainOptions, Zeroth, adapter, prepare};
use crate::backend::{Cpu, Law, MOST_DIRECTIONS, Measure, Noise, Still, Stored, Weights};
use crate::error::Result;
use crate::graph::{Derivatives, Graph, LoraSpec, ParamId};
use crate::model::Model;
use crate::plan::{Layout, Machine, Mode, Policy, PolicyName, Program, Request, States, compile};
use crate::store::TokenFile;

/// The mean cosine over `batches` batches. Exact methods have 1 for what they train, also where that is some blocks at a time. There is no number for all parameters of a model where their gradients
/// are not exact, nor for the scales of blocks, which have none.
///
/// # Errors
/// Whatever is wrong with options, files, data or the system.
pub fn alignment(options: &TrainOptions, batches: usize) -> Result<f64> {
    options.check()?;
    let zeroth = options.method.zeroth();
    if zeroth.is_none() && options.drop_backward == 0.0 && options.derivatives.exact() {
        return Ok(1.0);
    }
    match zeroth {
        _ if !options.trains_all() => of_adapter(options, batches),
        Some(zeroth) if zeroth.law != Law::Scales => of_model(options, zeroth, batches),
        _ => Ok(f64::NAN),
    }
}

/// All parameters of a model, which is not changed. Its gradients are never there all at once.
fn of_model(options: &TrainOptions, zeroth: Zeroth, batches: usize) -> Result<f64> {
    let model = Model::open(&options.model)?;
    model.check_reading(&options.data.reading)?;
    check_floats(&model, options.method)?;
    let graph = model.config.graph(Some(&LoraSpec { whole: true, ..LoraSpec::default() }))?;
    let data = prepare(&model, &options.data, options.max_seq_length, options.spill_folder())?;
    let weights = Weights::bind(model.files, &model.config, &graph)?;
    let programs = Programs::new(options, &weights, data.longest())?;
    let (exact, taken) = (programs.compile(&graph, Mode::TrainAndUpdate), programs.compile(&graph, Mode::Perturb));
    let mut cpu = programs.cpu(weights, &graph, [&exact, &taken])?;
    adapter::initialise(&mut cpu, &graph, options.seed)?;
    if let Still::Large(share) = zeroth.still {
        cpu.measure_limits(share);
    }
    let mut samples = Samples::new(options, &data);
    let mut sum = 0.0;
    for at in 0..batches {
        let far = samples.judged(at, &mut cpu, &graph, &taken, zeroth)?;
        // A cosine does not depend on how far; numbers are small beside it.
        let most = far.iter().fold(0.0_f64, |most, far| most.max(far.abs()));
        let coefficients: Vec<f32> = far.iter().map(|far| (far / most.max(f64::MIN_POSITIVE)) as f32).collect();
        samples.fill(at)?;
        let rows = &samples.rows;
        let batch = rows.batch(rows.targets(), Noise::default());
        sum += cpu.measure_along(&exact, batch, &coefficients)?.0.cosine();
    }
    Ok(sum / batches.max(1) as f64)
}

/// What programs are compiled for.
struct Programs<'a> {
    options: &'a TrainOptions,
    stored: Vec<Stored>,
    machine: Machine,
    length: usize,
}

impl<'a> Programs<'a> {
    fn new(options: &'a TrainOptions, weights: &Weights, length: usize) -> Result<Self> {
        Ok(Self { options, stored: weights.stored(), machine: options.run.machine()?, length })
    }

    fn compile(&self, graph: &Graph, mode: Mode) -> Program {
        let (tokens, policy) = (self.options.batch_size * self.length, Policy::named(PolicyName::Block));
        let (stored, machine) = (&self.stored, self.machine);
        compile(Request { graph, stored, tokens, machine, policy, mode, states: States::None })
    }

    /// A processor for both of them, the first of which differentiates.
    fn cpu(&self, weights: Weights, graph: &Graph, programs: [&Program; 2]) -> Result<Cpu> {
        let layout = Layout::new(graph, States::None, false, self.length, programs[0].mode, 0);
        Cpu::new(self.machine, weights, graph, layout, &programs, self.options.spill_folder())
    }
}

/// The first batches of a run.
struct Samples<'a> {
    options: &'a TrainOptions,
    file: &'a TokenFile,
    passes: Passes,
    rows: Rows,
}

impl<'a> Samples<'a> {
    fn new(options: &'a TrainOptions, data: &'a Prepared) -> Self {
        let (file, length) = (&data.train.tokens, data.longest());
        let batches = Batches::new(file.len(), options.shuffle, options.seed);
        let rows = Rows::with_capacity(options.batch_size, options.batch_size * length, length);
        let passes = Passes::plain(batches, options.batch_size);
        Self { options, file, passes, rows: rows.with_cloze(data.cloze.clone()) }
    }

    /// The records of batch `at`, as rows.
    fn fill(&mut self, at: usize) -> Result<()> {
        let step = self.passes.step();
        let records = self.passes.records(at as u64 * step, self.file);
        self.rows.fill(self.file, records.iter().map(|&record| record as usize))
    }

    /// How far a method without gradients goes along each direction for batch `at`, where the next update is aimed along them.
    fn judged(
        &mut self,
        at: usize,
        cpu: &mut Cpu,
        graph: &Graph,
        program: &Program,
        zeroth: Zeroth,
    ) -> Result<Vec<f64>> {
        let (groups, eps) = (zeroth.sides.groups(), self.options.zo_eps());
        cpu.aim(zeroth.aim(self.options.seed, at + 1, eps), graph);
        cpu.clear_sums();
        let step = self.passes.step();
        let records = self.passes.records(at as u64 * step, self.file);
        let mut unit = 0;
        while unit < records.len() * groups {
            unit = self.rows.fill_groups(self.file, records, groups, unit, program.tokens)?;
            cpu.run(program, self.rows.batch(self.rows.targets(), Noise::default()), 0, None)?;
        }
        let losses: Vec<f64> = (0..groups).map(|group| cpu.sum(group).mean_loss()).collect();
        let mut far = [0.0; MOST_DIRECTIONS];
        zeroth.judge(&losses, eps, &mut far);
        Ok(far[..zeroth.sides.directions()].to_vec())
    }
}

fn of_adapter(options: &TrainOptions, batches: usize) -> Result<f64> {
    let zeroth = options.method.zeroth();
    let model = Model::open(&options.model)?;
    model.check_reading(&options.data.reading)?;
    let data = prepare(&model, &options.data, options.max_seq_length, options.spill_folder())?;
    let (lora, saved) = match &options.lora {
        LoraChoice::New(spec) => (options.adapted(spec.clone(), &model.config)?, None),
        LoraChoice::From(folder) => {
            let saved = adapter::open(folder)?;
            (options.adapt(adapter::spec(folder, &saved)?, true)?, Some((folder, saved)))
        }
    };
    // Both have the same matrices; they differ in what a derivative reads.
    let graph = model.config.graph(Some(&LoraSpec { derivatives: Derivatives::default(), ..lora.clone() }))?;
    let other = model.config.graph(Some(&lora))?;
    let weights = Weights::bind(model.files, &model.config, &graph)?;
    let programs = Programs::new(options, &weights, data.longest())?;
    let exact = programs.compile(&graph, Mode::Accumulate);
    let taken = programs.compile(&other, if zeroth.is_some() { Mode::Perturb } else { Mode::Accumulate });
    let mut cpu = programs.cpu(weights, &graph, [&exact, &taken])?;
    match saved {
        Some((folder, saved)) => adapter::load(&mut cpu, &graph, &model.config, folder, &saved)?,
        None => adapter::initialise(&mut cpu, &graph, options.seed)?,
    }
    let mut samples = Samples::new(options, &data);
    let mut sum = 0.0;
    for at in 0..batches {
        samples.fill(at)?;
        cpu.drop_blocks(0.0, 0, 0);
        let gradient = gradient(&mut cpu, &graph, &exact, &samples.rows)?;
        let estimate = match zeroth {
            Some(zeroth) => {
                let far = samples.judged(at, &mut cpu, &graph, &taken, zeroth)?;
                estimate(&cpu, &graph, &far)
            }
            None => {
                cpu.drop_blocks(options.drop_backward, options.seed, at as u64 + 1);
                self::gradient(&mut cpu, &graph, &taken, &samples.rows)?
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

/// `Σ c z` along the directions that it was aimed along last.
fn estimate(cpu: &Cpu, graph: &Graph, far: &[f64]) -> Vec<f64> {
    let mut all = Vec::new();
    for (id, param) in graph.params.iter().enumerate() {
        let (mut along, mut z) = (vec![0.0; param.len()], vec![0.0; param.len()]);
        for (direction, far) in far.iter().enumerate() {
            cpu.direction(ParamId(id), direction, &mut z);
            along.iter_mut().zip(&z).for_each(|(along, &z)| *along += far * f64::from(z));
        }
        all.extend(along);
    }
    all
}

fn cosine(gradient: &[f64], step: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    Measure { squares: dot(gradient, gradient), step_squares: dot(step, step), along: dot(gradient, step) }.cosine()
}
