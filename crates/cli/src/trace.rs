//! What a run really held: a thread looks at the process every few milliseconds while steps run. It takes all its memory before
//! the run is planned, so that the plan counts it, and never more: of long steps it keeps the highest of every few looks, of long
//! runs the highest of every few steps. The engine knows nothing of it.

mod record;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pocketune::memory;
use pocketune::plan::{Plan, Sample, picture};
use pocketune::store;

use crate::Failure;
use record::{Look, Record};

/// Stack of the thread; with the record it stays below 256 KiB.
const STACK_BYTES: usize = 64 << 10;
/// Time between two looks: a share of the last step, inside these bounds.
const BETWEEN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];

/// A sampler at work.
pub struct Trace {
    path: PathBuf,
    shared: Arc<Mutex<Now>>,
    thread: JoinHandle<Record>,
}

/// What the run tells the sampler.
struct Now {
    start: Instant,
    /// When the first step began.
    first: Option<Duration>,
    /// The step that runs, from 1; none before the first and after the last.
    step: u32,
    /// When it began, since the first; after the last, when that ended.
    since: Duration,
    stopped: bool,
}

impl Trace {
    /// Starts to look, for a trace that will be written to `path`.
    pub fn start(path: &Path) -> Result<Self, Failure> {
        for file in [path, &beside(path)] {
            store::check_file(file).map_err(Failure::new)?;
        }
        let now = Now { start: Instant::now(), first: None, step: 0, since: Duration::ZERO, stopped: false };
        let shared = Arc::new(Mutex::new(now));
        let record = Record::new();
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("memory-trace".into())
            .stack_size(STACK_BYTES)
            .spawn(move || watch(&seen, record))
            .map_err(|error| Failure(format!("--memory-trace: no thread: {error}")))?;
        Ok(Self { path: path.into(), shared, thread })
    }

    /// A step begins.
    pub fn step(&self, iter: usize) {
        let mut now = lock(&self.shared);
        let time = now.start.elapsed();
        let first = *now.first.get_or_insert(time);
        (now.step, now.since) = (iter as u32, time - first);
    }

    /// The last step is over.
    pub fn end(&self) {
        self.step(0);
    }

    /// Writes what was seen, and beside it the picture of the last step as planned and as measured.
    pub fn finish(self, plan: &Plan, budget: Option<usize>) -> Result<PathBuf, Failure> {
        lock(&self.shared).stopped = true;
        self.thread.thread().unpark();
        let record = self.thread.join().map_err(|_| Failure("--memory-trace: the sampler failed".into()))?;
        let mut text = String::new();
        for look in record.looks() {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{{\"seconds\":{:.6},\"step\":{},\"rss_bytes\":{},\"rss_anon_bytes\":{}}}",
                look.micros as f64 / 1e6,
                look.step,
                look.rss(),
                look.anon()
            );
        }
        store::write_file(&self.path, text.as_bytes()).map_err(Failure::new)?;
        let sample = |(fraction, look): (f64, &Look)| Sample { fraction, anon: look.anon(), rss: look.rss() };
        let samples: Vec<Sample> = record.last_step().map(sample).collect();
        let drawing = picture(plan, budget, Some(&samples));
        let path = beside(&self.path);
        store::write_file(&path, drawing.as_bytes()).map_err(Failure::new)?;
        Ok(path)
    }
}

/// The picture's path: the trace's with `.svg` behind it.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".svg");
    name.into()
}

/// Looks until it is told to stop; allocates nothing.
fn watch(shared: &Mutex<Now>, mut record: Record) -> Record {
    // Once before anything is planned, so that this thread's own pages are there.
    let _ = memory::now();
    let mut pause = BETWEEN[1];
    loop {
        let resident = memory::now();
        let now = lock(shared);
        if let Some(length) = record.at(now.step, now.since.as_micros() as u64) {
            pause = (length / 64).clamp(BETWEEN[0], BETWEEN[1]);
        }
        if now.step > 0 {
            let time = now.start.elapsed() - now.first.unwrap_or_default();
            record.add(Look::new(time.as_micros() as u64, now.step, resident));
        }
        if now.stopped {
            return record;
        }
        drop(now);
        std::thread::park_timeout(pause);
    }
}

fn lock(shared: &Mutex<Now>) -> MutexGuard<'_, Now> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
