//! Keeps a run: its state goes to checkpoints and comes back, under any plan and any number of threads. A run that ends before it learnt
//! anything leaves nothing behind.
//!
//! A checkpoint's body is the adapter, matrix by matrix as it lies in the arena (or the model's own tensors as they are stored, where those are trained), then the optimizer's state of each, and then the log of updates
//! where the run keeps one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::planning::closest_folder;
use super::progress::Progress;
use super::terms::Terms;
use super::{Every, Resume, TrainOptions};
use crate::backend::Cpu;
use crate::error::{Error, Result};
use crate::graph::{Graph, ParamId};
use crate::store::{CHUNK, Checkpoints, Files, RunLock, Saved, hidden_folder, settle};

/// The form of the header and the body.
const FORMAT: u32 = 2;
/// Room for longer numbers in a later header; the next one goes into the same file.
const SLACK: usize = 1024;

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    terms: Terms,
    progress: Progress,
    /// Floats of the adapter.
    adapter: u64,
    /// Floats of the optimizer's state.
    optimizer: u64,
    /// Floats of the log.
    log: u64,
}

/// The checkpoints of a run that goes on.
pub struct Keeper {
    checkpoints: Checkpoints<'static>,
    /// Where the run that is gone on with was found.
    from: Option<Saved>,
    terms: Option<Terms>,
    /// Bytes of every header.
    room: usize,
    /// What states pass through that wait on disk.
    chunk: Vec<f32>,
    /// The updates and the moment of the last checkpoint.
    last: Option<(usize, Duration)>,
    /// Held from the moment that something is written on.
    lock: Option<(RunLock, Ground)>,
}

impl Keeper {
    /// Looks for an earlier run as `options` say, and writes nothing yet.
    ///
    /// # Errors
    /// When one waits there that was not asked for, or none is where one should be.
    pub fn open(options: &TrainOptions) -> Result<Self> {
        let run = &options.adapter_path;
        let mut checkpoints = Checkpoints::of(&Files, run)?;
        let same = |folder: &Path| folder.canonicalize().ok() == run.canonicalize().ok();
        let from = match &options.keeping.resume {
            Resume::From(folder) if !same(folder) => {
                check_nothing_waits(&mut checkpoints, run)?;
                let found = Checkpoints::of(&Files, folder)?.newest()?;
                Some(found.ok_or_else(|| nothing(folder))?)
            }
            Resume::From(folder) => Some(checkpoints.newest()?.ok_or_else(|| nothing(folder))?),
            Resume::Auto => checkpoints.newest()?,
            Resume::Never => {
                check_nothing_waits(&mut checkpoints, run)?;
                None
            }
        };
        let chunk = vec![0.0; CHUNK / 4];
        Ok(Self { checkpoints, from, terms: None, room: 0, chunk, last: None, lock: None })
    }

    /// Whether an earlier run is gone on with.
    pub fn resumes(&self) -> bool {
        self.from.is_some()
    }

    /// Takes the adapter's folder; takes the state of the earlier run over, or makes the first checkpoint of a new one; and takes the space
    /// for the next.
    ///
    /// # Errors
    /// When another run writes there, the earlier run had other terms, or the disk fails.
    pub fn begin(
        &mut self,
        terms: Terms,
        options: &TrainOptions,
        cpu: &mut Cpu,
        graph: &Graph,
        now: Duration,
    ) -> Result<(Progress, Option<PathBuf>)> {
        let run = &options.adapter_path;
        let ground = Ground { run: run.clone(), existing: closest_folder(run).into() };
        self.lock = Some((RunLock::take(run)?, ground));
        settle(&Files, run)?;
        if Checkpoints::of(&Files, run)? != self.checkpoints {
            let fault = "another run wrote here meanwhile".into();
            return Err(Error::Option { option: "adapter-path", value: run.display().to_string(), fault });
        }
        let from = self.from.take();
        if from.is_none() {
            // What is worth nothing: `open` has looked.
            self.checkpoints.clear()?;
        }
        let path = from.as_ref().map(|saved| saved.path().to_path_buf());
        let progress = match from {
            Some(saved) => {
                let header = header(&saved)?;
                terms.check(&header.terms, options.keeping.allow_changed, saved.path())?;
                load(saved, &header, cpu, graph, &mut self.chunk)?;
                header.progress
            }
            None => Progress { first_loss: f64::NAN, last_loss: f64::NAN, ..Progress::default() },
        };
        let here = path.as_ref().is_some_and(|path| path.parent() == Some(self.checkpoints.folder()));
        if here {
            self.last = Some((progress.iter, now));
        }
        self.terms = Some(terms);
        self.room = (self.header(cpu, graph, &progress).len() + SLACK).next_multiple_of(4096);
        self.reserve(cpu, graph)?;
        if !here {
            self.commit(cpu, graph, &progress, now)?;
        }
        Ok((progress, path))
    }

    /// Whether the next checkpoint is due.
    pub fn is_due(&self, every: Every, iter: usize, now: Duration) -> bool {
        match (every, self.last) {
            (Every::Updates(updates), _) => iter.is_multiple_of(updates),
            (Every::Time(time), Some((_, last))) => now.saturating_sub(last) >= time,
            (Every::Time(_), None) => true,
        }
    }

    /// Whether the state after `iter` updates is on disk.
    pub fn has(&self, iter: usize) -> bool {
        self.last.is_some_and(|(last, _)| last == iter)
    }

    /// Updates of the last checkpoint.
    pub fn last_iter(&self) -> usize {
        self.last.map_or(0, |(iter, _)| iter)
    }

    /// Puts the state of the run on disk.
    ///
    /// # Errors
    /// [`Error::Numbers`] where the adapter is not finite: such a one never reaches the disk. Else the system's.
    pub fn commit(&mut self, cpu: &Cpu, graph: &Graph, progress: &Progress, now: Duration) -> Result<()> {
        check_finite(cpu, graph, &mut self.chunk)?;
        let mut text = self.header(cpu, graph, progress);
        text.resize(text.len().max(self.room), b' ');
        let chunk = &mut self.chunk;
        self.checkpoints.commit(&text, &mut |out| {
            params(graph).try_for_each(|id| cpu.read_param(id, chunk, &mut |part| out.write(part)))?;
            params(graph)
                .try_for_each(|id| cpu.read_state(id, chunk, &mut |part| out.write(bytemuck::cast_slice(part))))?;
            out.write(bytemuck::cast_slice(cpu.log()))
        })?;
        self.last = Some((progress.iter, now));
        self.reserve(cpu, graph)
    }

    /// Brings the state of the last checkpoint back.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn restore(&mut self, cpu: &mut Cpu, graph: &Graph) -> Result<Progress> {
        let found = self.checkpoints.newest()?;
        let saved = found.ok_or_else(|| nothing(self.checkpoints.folder()))?;
        let header = header(&saved)?;
        load(saved, &header, cpu, graph, &mut self.chunk)?;
        self.last = self.last.map(|(_, at)| (header.progress.iter, at));
        Ok(header.progress)
    }

    /// Checks that what was learnt may be written.
    ///
    /// # Errors
    /// What is not finite.
    pub fn check_finite(&mut self, cpu: &Cpu, graph: &Graph) -> Result<()> {
        check_finite(cpu, graph, &mut self.chunk)
    }

    /// The last checkpoint is no longer wanted, where there is one before it.
    pub fn discard(&mut self) {
        self.checkpoints.discard();
    }

    /// Makes room for the adapter.
    ///
    /// # Errors
    /// The system's.
    pub fn give_back(&mut self) -> Result<()> {
        self.checkpoints.give_back()
    }

    /// The run is complete: nothing of it is needed any more.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(mut self) -> Result<()> {
        self.last = None;
        self.checkpoints.clear()
    }

    fn header(&self, cpu: &Cpu, graph: &Graph, progress: &Progress) -> Vec<u8> {
        let terms = self.terms.clone().expect("a run begins before it is kept");
        let [adapter, optimizer, log] = sizes(cpu, graph);
        let header = Header { format: FORMAT, terms, progress: *progress, adapter, optimizer, log };
        serde_json::to_vec(&header).expect("numbers and words")
    }

    fn reserve(&mut self, cpu: &Cpu, graph: &Graph) -> Result<()> {
        self.checkpoints.reserve(self.room, sizes(cpu, graph).iter().sum::<u64>() * 4)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // On the way out of whatever is reported. Without an update there is nothing that a new run would not have at once.
        if self.last.is_some_and(|(iter, _)| iter > 0) || self.from.is_some() {
            let _ = self.checkpoints.give_back();
        } else if self.terms.is_some() {
            let _ = self.checkpoints.clear();
        }
    }
}

/// The folders that a run made; those that are empty at its end go away.
struct Ground {
    run: PathBuf,
    existing: PathBuf,
}

impl Drop for Ground {
    fn drop(&mut self) {
        let hidden = hidden_folder(&self.run);
        let made = hidden.ancestors().take_while(|folder| **folder != *self.existing && !folder.as_os_str().is_empty());
        // The first that holds something keeps all above it; the last of them may be gone already.
        let gone = |folder: &Path| std::fs::remove_dir(folder).is_ok() || !folder.exists();
        let _ = made.take_while(|folder| gone(folder)).count();
    }
}

fn params(graph: &Graph) -> impl Iterator<Item = ParamId> + use<> {
    (0..graph.params.len()).map(ParamId)
}

/// Floats of the adapter, of the optimizer's state, and of the log.
fn sizes(cpu: &Cpu, graph: &Graph) -> [u64; 3] {
    let sum = |of: &dyn Fn(ParamId) -> usize| params(graph).map(|id| of(id) as u64).sum();
    [sum(&|id| cpu.param_bytes(id) / 4), sum(&|id| cpu.state_len(id)), cpu.log().len() as u64]
}

/// Checks that an adapter may be written.
///
/// # Errors
/// The module whose values are not finite.
fn check_finite(cpu: &Cpu, graph: &Graph, chunk: &mut [f32]) -> Result<()> {
    for id in params(graph) {
        if !cpu.is_finite(id, chunk)? {
            let (what, name) = (if graph.whole { "tensor" } else { "the adapter of" }, graph.name_of(id));
            return Err(Error::Numbers(format!("{what} {name} is no longer finite; a lower --learning-rate may help")));
        }
    }
    Ok(())
}

/// How many updates a checkpoint comes after.
///
/// # Errors
/// When its header is not one of a run's.
pub fn updates_of(saved: &Saved) -> Result<usize> {
    header(saved).map(|header| header.progress.iter)
}

fn header(saved: &Saved) -> Result<Header> {
    let fault = |fault: String| Error::Checkpoint { path: saved.path().into(), fault };
    let header: Header =
        serde_json::from_slice(&saved.header).map_err(|error| fault(format!("an unknown header: {error}")))?;
    match header.format {
        FORMAT => Ok(header),
        other => Err(fault(format!("a checkpoint of format {other}, where this program knows {FORMAT}"))),
    }
}

fn load(mut saved: Saved, header: &Header, cpu: &mut Cpu, graph: &Graph, chunk: &mut [f32]) -> Result<()> {
    let [adapter, optimizer, _] = sizes(cpu, graph);
    let bytes = (adapter + optimizer).checked_add(header.log).and_then(|floats| floats.checked_mul(4));
    if [header.adapter, header.optimizer] != [adapter, optimizer] || Some(saved.left()) != bytes {
        let fault = format!(
            "it holds {} numbers of an adapter and {} of its optimizer, where this run has {adapter} and {optimizer}",
            header.adapter, header.optimizer
        );
        return Err(Error::Checkpoint { path: saved.path().into(), fault });
    }
    params(graph).try_for_each(|id| cpu.write_param(id, chunk, &mut |part| saved.read(part)))?;
    params(graph)
        .try_for_each(|id| cpu.write_state(id, chunk, &mut |part| saved.read(bytemuck::cast_slice_mut(part))))?;
    // A run of another number of updates has a log of another length; what there is of both is the same.
    let log = cpu.log_mut();
    let known = log.len().min(header.log as usize);
    saved.read(bytemuck::cast_slice_mut(&mut log[..known]))?;
    check_finite(cpu, graph, chunk)
}

fn nothing(folder: &Path) -> Error {
    Error::Checkpoint { path: folder.into(), fault: "no run waits here to be gone on with".into() }
}

/// A run that has learnt something is not overwritten by another that does not know of it.
fn check_nothing_waits(checkpoints: &mut Checkpoints, run: &Path) -> Result<()> {
    // What is damaged beyond use is no loss.
    let Ok(Some(saved)) = checkpoints.newest() else { return Ok(()) };
    let iter = updates_of(&saved)?;
    if iter == 0 {
        return Ok(());
    }
    let fault = format!(
        "a run that stopped after update {iter} waits there; --resume auto goes on with it, removing {} forgets it",
        checkpoints.folder().display()
    );
    Err(Error::Option { option: "adapter-path", value: run.display().to_string(), fault })
}
