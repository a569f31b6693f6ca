//! Loss and accuracy over all records of a data set.

use std::path::PathBuf;

use super::options::check_batch;
use super::planning::Task;
use super::{Budget, DataOptions, Rows, RunOptions, adapter, prepare};
use crate::backend::{Cpu, Noise, Outcome, Weights};
use crate::error::{Error, Result};
use crate::model::{Model, Source};
use crate::plan::{Mode, Program};
use crate::store::TokenFile;

/// An evaluation.
#[derive(Clone, Debug)]
pub struct EvalOptions {
    /// The model.
    pub model: Source,
    /// An adapter of any kind.
    pub adapter: Option<PathBuf>,
    /// The records; of a folder, what there is to validate on.
    pub data: DataOptions,
    /// Records a pass.
    pub batch_size: usize,
    /// Longer records are cut.
    pub max_seq_length: usize,
    /// The memory that the process may take.
    pub budget: Budget,
    /// How kernels run.
    pub run: RunOptions,
}

/// Measures a model on a data set.
///
/// # Errors
/// Whatever is wrong with options, files, data or the numbers.
pub fn evaluate(options: &EvalOptions) -> Result<Outcome> {
    check_batch(options.batch_size, options.max_seq_length)?;
    let model = Model::open(&options.model)?;
    model.check_reading(&options.data.reading)?;
    let data = prepare(&model, &options.data.to_measure()?, options.max_seq_length, &std::env::temp_dir())?;
    let (cloze, tokens) = (data.cloze, data.valid.unwrap_or(data.train).tokens);
    let (mut cpu, program) = ready(options, model, (options.batch_size, tokens.longest()))?;
    let room = options.batch_size * tokens.longest();
    let mut buffer = Rows::with_capacity(options.batch_size, room, tokens.longest()).with_cloze(cloze);
    let outcome = run(&mut cpu, &program, &tokens, &mut buffer, options.batch_size, None)?;
    if outcome.loss.is_finite() {
        return Ok(outcome);
    }
    let unknown = || Error::Numbers(format!("the loss is {}", outcome.loss));
    Err(cpu.weights().find_not_finite().unwrap_or_else(unknown))
}

/// A model with its adapter, and the program of a pass over `size`: so many records of so many tokens at most.
pub(super) fn ready(options: &EvalOptions, model: Model, size: (usize, usize)) -> Result<(Cpu, Program)> {
    let saved = options.adapter.as_ref().map(|folder| Ok::<_, Error>((folder, adapter::open(folder)?))).transpose()?;
    let lora = saved.as_ref().map(|(folder, saved)| adapter::spec(folder, saved)).transpose()?;
    let graph = model.config.graph(lora.as_ref())?;
    let weights = Weights::bind(model.files, &model.config, &graph)?;
    let task = Task::forward(options.run, &model.config, weights.stored(), lora, Mode::Evaluate, size)?;
    let plan = task.choose(options.budget)?;
    let mut cpu =
        Cpu::new(task.machine, weights, &graph, plan.layout.clone(), &[&plan.program], &std::env::temp_dir())?;
    if let Some((folder, saved)) = &saved {
        adapter::load(&mut cpu, &graph, &model.config, folder, saved)?;
    }
    Ok((cpu, plan.program))
}

/// The records of `file`, `batch_size` at a time or as many as the program has room for; no more than the first `most` batches. Losses add up
/// record by record, however many are read at a time.
pub(super) fn run(
    cpu: &mut Cpu,
    program: &Program,
    file: &TokenFile,
    rows: &mut Rows,
    batch_size: usize,
    most: Option<usize>,
) -> Result<Outcome> {
    let records = most.map_or(file.len(), |most| most.saturating_mul(batch_size).min(file.len()));
    let at_once = (program.tokens / file.longest().max(1)).clamp(1, batch_size);
    cpu.clear_sums();
    for first in (0..records).step_by(at_once) {
        rows.fill(file, first..(first + at_once).min(records))?;
        cpu.run(program, rows.batch(rows.targets(), Noise::default()), 0, None)?;
    }
    Ok(cpu.sum(0))
}
