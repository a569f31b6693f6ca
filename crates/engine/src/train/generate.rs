//! Text from a model: the prompt in pieces, then token by token over a cache of keys and values. What a prompt begins with and the cache
//! holds already is not read again, so that a conversation costs its new words only.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use pocketune_kernels::philox::Philox;

use super::planning::Task;
use super::{Budget, RunOptions, adapter};
use crate::backend::{Batch, Cpu, Noise, Weights};
use crate::error::{Error, Result};
use crate::model::{Model, Source};
use crate::plan::{Mode, Program};

/// Tokens of the prompt that are read in one pass.
const PIECE: usize = 256;

/// The room of a conversation in the smallest memory.
const SMALL_ROOM: usize = 512;

/// No plan is made for less room.
const LEAST_ROOM: usize = 64;

/// What a process may grow by from when its room is measured until it is taken.
const GROWTH: usize = 4 << 20;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Only the most likely tokens that together have this probability are drawn from.
    pub top_p: f32,
    /// The seed of the draws.
    pub seed: u64,
}

/// What to generate with.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// The model.
    pub model: Source,
    /// An adapter of any kind.
    pub adapter: Option<PathBuf>,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// The memory that the process may take.
    pub budget: Budget,
    /// How kernels run.
    pub run: RunOptions,
}

impl Sampling {
    fn check(&self) -> Result<()> {
        let fault = |option, value: f32, fault: &str| {
            Err(Error::Option { option, value: value.to_string(), fault: fault.into() })
        };
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return fault("temp", self.temperature, "a temperature is a number of at least 0");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return fault("top-p", self.top_p, "it lies above 0 and at most at 1");
        }
        Ok(())
    }
}

/// A model that is ready to continue token sequences.
pub struct Generator {
    cpu: Cpu,
    program: Program,
    context: usize,
    sampling: Sampling,
    /// Token numbers, to sort by probability.
    order: Vec<u32>,
    /// The tokens whose keys and values the cache holds.
    seen: Vec<u32>,
}

impl Generator {
    /// Sets up for at most `context` tokens, prompt included.
    ///
    /// # Errors
    /// Whatever is wrong with options or files.
    pub fn new(options: &GenerateOptions, context: usize) -> Result<Self> {
        options.sampling.check()?;
        let model = Model::open(&options.model)?;
        model.check_next_token()?;
        let most = model.config.longest(context);
        if context > most {
            let fault = format!("prompt and continuation have {context} tokens, and the model has {most} positions");
            return Err(Error::Option { option: "max-tokens", value: "…".into(), fault });
        }
        let saved =
            options.adapter.as_ref().map(|folder| Ok::<_, Error>((folder, adapter::open(folder)?))).transpose()?;
        let lora = saved.as_ref().map(|(folder, saved)| adapter::spec(folder, saved)).transpose()?;
        let graph = model.config.graph(lora.as_ref())?;
        let weights = Weights::bind(model.files, &model.config, &graph)?;
        let task = Task::forward(options.run, &model.config, weights.stored(), lora, mode(context), size(context))?;
        let task = with_room(&task, context);
        let plan = task.choose(options.budget)?;
        let mut cpu =
            Cpu::new(task.machine, weights, &graph, plan.layout.clone(), &[&plan.program], &std::env::temp_dir())?;
        if let Some((folder, saved)) = &saved {
            adapter::load(&mut cpu, &graph, &model.config, folder, saved)?;
        }
        Ok(Self {
            cpu,
            program: plan.program,
            context,
            sampling: options.sampling,
            order: (0..graph.vocab as u32).collect(),
            seen: Vec::with_capacity(context),
        })
    }

    /// The most tokens, up to `most`, that a generator of `options` has room for in its budget.
    ///
    /// # Errors
    /// Whatever is wrong with options or files.
    pub fn room(options: &GenerateOptions, most: usize) -> Result<usize> {
        let model = Model::open(&options.model)?;
        let most = model.config.longest(most);
        let Some(bytes) = options.budget.bytes()? else { return Ok(most.min(SMALL_ROOM)) };
        let adapter = options.adapter.as_ref();
        let lora = adapter.map(|folder| adapter::spec(folder, &adapter::open(folder)?)).transpose()?;
        let graph = model.config.graph(lora.as_ref())?;
        let stored = Weights::bind(model.files, &model.config, &graph)?.stored();
        let task = Task::forward(options.run, &model.config, stored, lora, mode(most), size(most))?;
        let room = task.largest(bytes.saturating_sub(GROWTH), 1..=most, |context| with_room(&task, context))?;
        Ok(room.max(LEAST_ROOM.min(most)))
    }

    /// From now on reading ends with [`Error::Stopped`] soon after `stop` is not zero.
    pub fn heed(&mut self, stop: Arc<AtomicU8>) {
        self.cpu.heed(stop);
    }

    /// Continues `prompt`, handing each token to `each`, until `each` says no more or the context is full.
    ///
    /// # Errors
    /// When the prompt is empty or too long, or the logits are not finite.
    pub fn generate(&mut self, prompt: &[u32], each: &mut dyn FnMut(u32) -> bool) -> Result<()> {
        if prompt.is_empty() || prompt.len() >= self.context {
            let fault =
                format!("{} tokens, where a context of {} holds 1 to {}", prompt.len(), self.context, self.context - 1);
            return Err(Error::Option { option: "prompt", value: "…".into(), fault });
        }
        let same = self.seen.iter().zip(prompt).take_while(|(seen, asked)| seen == asked).count();
        // The last token is read in any case: what follows it is wanted.
        self.seen.truncate(same.min(prompt.len() - 1));
        for piece in prompt[self.seen.len()..].chunks(self.program.tokens) {
            self.read(piece)?;
        }
        let numbers = Philox::new(self.sampling.seed, 2 << 32);
        loop {
            let token = self.choose(numbers.uniform(self.seen.len() as u64))?;
            if !each(token) || self.seen.len() + 1 >= self.context {
                return Ok(());
            }
            self.read(&[token])?;
        }
    }

    /// Reads the next tokens. Where that is not finished, the cache counts as it was.
    fn read(&mut self, ids: &[u32]) -> Result<()> {
        let past = self.seen.len();
        let mut positions = [0; PIECE];
        let positions = &mut positions[..ids.len()];
        positions.iter_mut().enumerate().for_each(|(at, position)| *position = (past + at) as u32);
        let batch = Batch {
            ids,
            positions,
            labels: &[],
            choices: &[],
            segments: &[],
            targets: 0,
            noise: Noise::default(),
            groups: &[],
        };
        self.cpu.run(&self.program, batch, past, None)?;
        self.seen.extend_from_slice(ids);
        Ok(())
    }

    /// The next token for a `draw` in [0, 1).
    fn choose(&mut self, draw: f32) -> Result<u32> {
        let logits = self.cpu.logits(&self.program);
        if logits.iter().any(|x| !x.is_finite()) {
            let unknown = || Error::Numbers("the model's logits are not finite".into());
            return Err(self.cpu.weights().find_not_finite().unwrap_or_else(unknown));
        }
        let at = |token: u32| logits[token as usize];
        // Ties go to the lower number, so that the order is one order.
        let better = |a: &u32, b: &u32| at(*b).total_cmp(&at(*a)).then(a.cmp(b));
        let best = *self.order.iter().min_by(|a, b| better(a, b)).expect("a vocabulary is not empty");
        if self.sampling.temperature == 0.0 {
            return Ok(best);
        }
        self.order.sort_unstable_by(better);
        let weight = |token: u32| f64::from((at(token) - at(best)) / self.sampling.temperature).exp();
        let total: f64 = self.order.iter().map(|&token| weight(token)).sum();
        let mut kept = 0.0;
        let mut count = 0;
        for &token in &self.order {
            kept += weight(token);
            count += 1;
            if kept >= total * f64::from(self.sampling.top_p) {
                break;
            }
        }
        let mut left = f64::from(draw) * kept;
        for &token in &self.order[..count] {
            left -= weight(token);
            if left < 0.0 {
                return Ok(token);
            }
        }
        Ok(self.order[count - 1])
    }
}

fn mode(context: usize) -> Mode {
    Mode::Generate { context }
}

/// One record, of the tokens that are read in one pass.
fn size(context: usize) -> (usize, usize) {
    (1, context.clamp(1, PIECE))
}

/// A task with room for `context` tokens, and for remembering which they were.
fn with_room(task: &Task, context: usize) -> Task {
    let (batch, length) = size(context);
    let mut task = Task { mode: mode(context), batch, length, ..task.clone() };
    task.around.process += context * size_of::<u32>();
    task
}
