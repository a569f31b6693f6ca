//! Pauses a real run at random moments, through the handle that an app has, and measures how long it takes from the wish until its state
//! is on disk; then compares its adapter with that of a run that nobody paused.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use pocketune::graph::LoraSpec;
use pocketune::model::Source;
use pocketune::train::{
    Budget, DataOptions, DataSource, Decay, Ending, Event, Host, Job, Keeping, LoraChoice, Method, Optimizer,
    PolicyChoice, PrecisionChoice, RunOptions, Schedule, State, TrainOptions,
};
use pocketune_formats::BlockType;
use pocketune_kernels::philox::Philox;

use crate::failure::{Failure, Result};
use crate::{note, say};

#[derive(Args)]
pub struct Options {
    /// The model.
    #[arg(long)]
    model: PathBuf,
    /// The records.
    #[arg(long)]
    data: PathBuf,
    /// How often the run is paused.
    #[arg(long, default_value_t = 500)]
    pauses: usize,
    /// Updates of the run.
    #[arg(long, default_value_t = 50)]
    iters: usize,
    /// Records in a batch.
    #[arg(long, default_value_t = 1)]
    batch_size: usize,
    /// Longer records are cut to this many tokens.
    #[arg(long, default_value_t = 256)]
    max_seq_length: usize,
    /// Rank of the adapters.
    #[arg(long, default_value_t = 8)]
    lora_rank: usize,
    /// Memory for the whole process.
    #[arg(long, default_value = "50%")]
    memory_budget: String,
    /// The longest time between two pauses, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    between: u64,
}

struct Quiet(Instant);

impl Host for Quiet {
    fn now(&mut self) -> Duration {
        self.0.elapsed()
    }

    fn event(&mut self, _: Event) {}
}

/// Runs both, and prints the times.
///
/// # Errors
/// When a run fails, or the adapters differ.
pub fn run(options: &Options) -> Result<()> {
    let folder = tempfile::tempdir_in(".").map_err(|error| Failure::io(".", error))?;
    let (whole, paused) = (folder.path().join("whole"), folder.path().join("paused"));
    let job = start(options, &whole)?;
    let begun = Instant::now();
    finish(job)?;
    note(&format!("undisturbed: {} updates in {:.1} s", options.iters, begun.elapsed().as_secs_f64()));
    let job = start(options, &paused)?;
    let mut times = Vec::new();
    let numbers = Philox::new(options.pauses as u64, 1);
    while job.control().state() != State::Ended {
        let wait = Duration::from_micros(numbers.below(times.len() as u64, options.between * 1000));
        std::thread::sleep(wait);
        if job.control().state() != State::Running || times.len() >= options.pauses {
            continue;
        }
        let wished = Instant::now();
        job.control().pause();
        while job.control().state() == State::Running {
            std::thread::sleep(Duration::from_micros(200));
        }
        if job.control().state() == State::Paused {
            times.push(wished.elapsed());
        }
        job.control().resume();
        while job.control().state() == State::Paused {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    finish(job)?;
    let read = |folder: &Path| {
        let path = folder.join("adapter_model.safetensors");
        std::fs::read(&path).map_err(|error| Failure::io(&path, error))
    };
    if read(&whole)? != read(&paused)? {
        return Err(Failure::new(format!("after {} pauses the adapter is another", times.len())));
    }
    times.sort_unstable();
    let share = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len() - 1));
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    say(&format!(
        "{} pauses, the same adapter to the byte; from the wish to the state on disk: p50 {:.0} ms, p90 {:.0} ms, p99 {:.0} ms, most {:.0} ms\n",
        times.len(),
        ms(share(0.5)),
        ms(share(0.9)),
        ms(share(0.99)),
        ms(times.last())
    ));
    Ok(())
}

fn finish(job: Job) -> Result<()> {
    match job.wait()? {
        Ending::Done(_) => Ok(()),
        Ending::Stopped { iter, .. } => {
            Err(Failure::new(format!("stopped after update {iter}, and nobody asked it to")))
        }
    }
}

fn start(options: &Options, folder: &Path) -> Result<Job> {
    let rank = options.lora_rank;
    let lora = LoraSpec { rank, alpha: 2.0 * rank as f32, ..LoraSpec::default() };
    let options = TrainOptions {
        model: Source::Path(options.model.clone()),
        data: DataOptions::plain(DataSource::Path(options.data.clone())),
        adapter_path: folder.into(),
        method: Method::Backprop,
        all: false,
        drop_backward: 0.0,
        derivatives: Default::default(),
        zo_eps: None,
        switch_every: None,
        block_order: None,
        store: BlockType::BF16,
        lora: LoraChoice::New(lora),
        lora_plus: 1.0,
        iters: options.iters,
        epochs: None,
        batch_size: options.batch_size,
        accumulation: 1,
        max_seq_length: options.max_seq_length,
        pack: false,
        optimizer: Optimizer::AdamW,
        weight_decay: None,
        schedule: Schedule { peak: 1e-4, decay: Decay::Constant, floor: 0.0, warmup: 0 },
        policy: PolicyChoice::Auto,
        shuffle: true,
        seed: 0,
        steps_per_report: 10,
        steps_per_eval: 1000,
        val_batches: None,
        save_best: false,
        early_stopping: None,
        budget: Budget::parse(&options.memory_budget)?,
        spill_folder: None,
        max_grad_norm: None,
        max_loss_z: None,
        keeping: Keeping::default(),
        run: RunOptions { threads: None, precision: PrecisionChoice::Auto, rates: None },
        kept: None,
    };
    Ok(Job::start(options, Quiet(Instant::now()))?)
}
