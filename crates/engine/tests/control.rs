//! A run from outside: paused, slowed, squeezed into less memory, cancelled and gone on with, it ends with the bytes of one that was left
//! alone. Updates whose numbers are bad change nothing.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use pocketune::graph::LoraSpec;
use pocketune::model::Source;
use pocketune::train::{
    Advice, Budget, DataOptions, DataSource, Decay, Ending, Event, Every, Host, Job, Keeping, LoraChoice, Method,
    Optimizer, Pace, PolicyChoice, PrecisionChoice, Resume, RunOptions, Schedule, State, TrainOptions,
};
use pocketune_kernels::BlockType;

const ITERS: usize = 12;
/// No run here takes so long.
const DEADLINE: Duration = Duration::from_secs(120);

fn options(adapter_path: PathBuf) -> TrainOptions {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    TrainOptions {
        model: Source::Path(demo.join("model.gguf")),
        data: DataOptions::plain(DataSource::Path(demo.join("data/train.jsonl"))),
        adapter_path,
        method: Method::Backprop,
        all: false,
        drop_backward: 0.0,
        derivatives: Default::default(),
        zo_eps: None,
        switch_every: None,
        block_order: None,
        store: BlockType::BF16,
        lora: LoraChoice::New(LoraSpec::default()),
        lora_plus: 1.0,
        iters: ITERS,
        epochs: None,
        batch_size: 2,
        accumulation: 1,
        max_seq_length: 64,
        pack: false,
        optimizer: Optimizer::AdamW,
        weight_decay: None,
        schedule: Schedule { peak: 3e-3, decay: Decay::Constant, floor: 0.0, warmup: 0 },
        policy: PolicyChoice::Auto,
        shuffle: true,
        seed: 3,
        steps_per_report: 1,
        steps_per_eval: 1000,
        val_batches: None,
        save_best: false,
        early_stopping: None,
        budget: Budget::Share(0.5),
        spill_folder: None,
        max_grad_norm: None,
        max_loss_z: None,
        keeping: Keeping::default(),
        run: RunOptions { threads: Some(2), precision: PrecisionChoice::Auto, rates: None },
        kept: None,
    }
}

/// What a host was told, in a word and a number.
type Told = (&'static str, f64);

/// A host that tells a test what happens, and advises by the number of the update that comes next.
struct Listener {
    start: Instant,
    told: Sender<Told>,
    done: usize,
    advise: fn(usize) -> Advice,
}

impl Host for Listener {
    fn now(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn event(&mut self, event: Event) {
        let told = match event {
            Event::Step { iter, .. } => ("step", iter as f64),
            Event::Report(report) => {
                self.done = report.iter;
                ("report", report.loss)
            }
            Event::Paused { iter } => ("paused", iter as f64),
            Event::Moved { plan, .. } => ("moved", plan.memory.standing() as f64),
            Event::Planned { plan, .. } => ("planned", plan.memory.standing() as f64),
            Event::Skipped { iter, .. } => ("skipped", iter as f64),
            Event::WentBack { iter, .. } => ("back", iter as f64),
            Event::Resumed { iter, .. } => ("resumed", iter as f64),
            _ => return,
        };
        // A test that has seen enough listens no more.
        let _ = self.told.send(told);
    }

    fn advice(&mut self) -> Advice {
        (self.advise)(self.done + 1)
    }
}

fn start(options: TrainOptions, advise: fn(usize) -> Advice) -> (Job, Receiver<Told>) {
    let (told, heard) = channel();
    (Job::start(options, Listener { start: Instant::now(), told, done: 0, advise }).unwrap(), heard)
}

fn go(_: usize) -> Advice {
    Advice::GO
}

/// The adapter of a run that is left alone.
fn undisturbed(options: &TrainOptions) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (job, _) = start(TrainOptions { adapter_path: folder.path().join("whole"), ..options.clone() }, go);
    assert!(matches!(job.wait().unwrap(), Ending::Done(_)));
    adapter(&folder.path().join("whole"))
}

fn adapter(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("adapter_model.safetensors")).unwrap()
}

fn until(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < DEADLINE, "waited for ever until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn paused_at_any_moment_it_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for accumulation in [1, 2] {
        let options = TrainOptions { accumulation, ..options(folder.path().join(format!("{accumulation}"))) };
        let (job, heard) = start(options.clone(), go);
        let control = job.control().clone();
        let mut pauses = 0;
        while let Ok((word, number)) = heard.recv_timeout(DEADLINE) {
            if word == "step" && number as usize > pauses {
                // Another moment of every update, before or after its first gradient was applied.
                std::thread::sleep(Duration::from_micros(700 * number as u64));
                control.pause();
                until("it pauses or ends", || matches!(control.state(), State::Paused | State::Ended));
                pauses = number as usize;
                control.resume();
            }
        }
        assert!(pauses >= ITERS - 1, "{pauses} pauses");
        assert_eq!(control.state(), State::Ended);
        assert!(matches!(job.wait().unwrap(), Ending::Done(_)));
        assert!(adapter(&options.adapter_path) == undisturbed(&options), "{accumulation} passes");
    }
}

#[test]
fn cancelled_while_it_waits_it_can_be_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path().join("run"));
    let (job, heard) = start(options.clone(), go);
    while heard.recv_timeout(DEADLINE).unwrap() != ("step", 4.0) {}
    job.control().pause();
    until("it pauses", || job.control().state() == State::Paused);
    job.control().cancel();
    job.control().resume();
    let Ending::Stopped { iter, iters } = job.wait().unwrap() else { panic!("it was cancelled") };
    assert!((3..=4).contains(&iter) && iters == ITERS, "stopped after update {iter}");
    let keeping = Keeping { resume: Resume::Auto, ..Keeping::default() };
    let (job, heard) = start(TrainOptions { keeping, ..options.clone() }, go);
    assert!(matches!(job.wait().unwrap(), Ending::Done(_)));
    assert!(heard.try_iter().any(|told| told == ("resumed", iter as f64)));
    assert!(adapter(&options.adapter_path) == undisturbed(&options));
}

#[test]
fn with_less_memory_it_moves_to_a_smaller_plan_and_back_without_losing_a_bit() {
    let folder = tempfile::tempdir().unwrap();
    for optimizer in [Optimizer::AdamW, Optimizer::AdamW8bit, Optimizer::Sgd] {
        let options = TrainOptions {
            optimizer,
            batch_size: 8,
            max_seq_length: 256,
            ..options(folder.path().join(format!("{optimizer:?}")))
        };
        let (job, heard) = start(options.clone(), |next| match next {
            // Less than any plan needs: the smallest is taken.
            5..=6 => Advice { memory: Some(1 << 20), ..Advice::GO },
            _ => Advice::GO,
        });
        assert!(matches!(job.wait().unwrap(), Ending::Done(_)));
        let peaks: Vec<f64> =
            heard.try_iter().filter(|(word, _)| matches!(*word, "planned" | "moved")).map(|(_, peak)| peak).collect();
        assert!(peaks.len() == 3 && peaks[1] < peaks[0] && peaks[2] == peaks[0], "{optimizer:?}: {peaks:?}");
        assert!(adapter(&options.adapter_path) == undisturbed(&options), "{optimizer:?}");
    }
}

#[test]
fn advice_to_rest_or_to_wait_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path().join("run"));
    static WAITED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let (job, heard) = start(options.clone(), |next| {
        let pace = match next {
            3 if WAITED.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 5 => Pace::Pause,
            4..=6 => Pace::Slow,
            _ => Pace::Run,
        };
        Advice { pace, memory: None }
    });
    assert!(matches!(job.wait().unwrap(), Ending::Done(_)));
    let told: Vec<Told> = heard.try_iter().collect();
    assert_eq!(told.iter().filter(|told| **told == ("paused", 2.0)).count(), 1, "{told:?}");
    assert!(adapter(&options.adapter_path) == undisturbed(&options));
}

#[test]
fn spikes_are_skipped_and_counted_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    // A rate of nothing: losses go up and down, and no slope hides it.
    let schedule = Schedule { peak: 1e-9, decay: Decay::Constant, floor: 0.0, warmup: 0 };
    let usual = TrainOptions { iters: 60, batch_size: 1, schedule, ..options(folder.path().join("spikes")) };
    // So low that ordinary losses are spikes once enough of them were seen.
    let (job, heard) = start(TrainOptions { max_loss_z: Some(0.5), ..usual.clone() }, go);
    let ending = job.wait();
    let told: Vec<Told> = heard.try_iter().collect();
    let skipped = told.iter().filter(|(word, _)| *word == "skipped").count();
    assert!(skipped > 0, "{told:?}");
    assert!(told.iter().all(|(word, iter)| *word != "skipped" || *iter > 20.0), "too early: {told:?}");
    if let Ok(Ending::Done(summary)) = ending {
        assert_eq!(summary.skipped, skipped);
    }
}

#[test]
fn a_learning_rate_that_no_halving_mends_ends_the_run_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let keeping = Keeping { every: Every::Updates(2), ..Keeping::default() };
    // No halving is enough for this one.
    let schedule = Schedule { peak: 3e38, decay: Decay::Constant, floor: 0.0, warmup: 0 };
    let options = TrainOptions { keeping, schedule, ..options(folder.path().join("run")) };
    let (job, heard) = start(options.clone(), go);
    let error = job.wait().unwrap_err().to_string();
    assert!(error.contains("--learning-rate"), "{error}");
    let told: Vec<Told> = heard.try_iter().collect();
    assert_eq!(told.iter().filter(|told| **told == ("back", 0.0)).count(), 4, "{told:?}");
    assert!(!options.adapter_path.exists(), "what was never good is not kept");
}
