//! A disk that exists in memory and loses power at any of its operations. What was not synced may survive in full, in part or not at
//! all, sector by sector and name by name, in any order; a sector that was being written may hold half of each or neither.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pocketune::store::{Storage, Stored};
use pocketune_kernels::philox::Philox;

const SECTOR: usize = 512;

/// What becomes of what was not synced.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    Lost,
    Survives,
    /// Some of it, drawn with this seed.
    Some(u64),
    /// Some of it, and a sector that was being written holds garbage.
    Torn(u64),
    /// Just those whose bits are set.
    These(u64),
}

impl Fate {
    /// Every one, with so many draws.
    pub fn all(draws: u64) -> Vec<Fate> {
        let drawn = (0..draws).flat_map(|seed| [Fate::Some(seed), Fate::Torn(seed)]);
        [Fate::Lost, Fate::Survives].into_iter().chain(drawn).collect()
    }

    fn spares(self, at: u64) -> bool {
        match self {
            Fate::These(bits) => bits >> at & 1 == 1,
            Fate::Lost => false,
            Fate::Survives => true,
            Fate::Some(seed) | Fate::Torn(seed) => Philox::new(seed, 1).uniform(at) < 0.5,
        }
    }
}

/// What goes wrong, at which operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    Never,
    /// The power goes: this operation and all after it fail.
    Crash(usize),
    /// This operation alone fails.
    Once(usize, ErrorKind),
    /// This one and all after it fail, but those that free space.
    From(usize, ErrorKind),
}

#[derive(Clone, Default)]
struct Content {
    durable: Vec<u8>,
    now: Vec<u8>,
}

#[derive(Clone)]
enum Change {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Change {
    fn touches(&self, folder: &Path) -> bool {
        let inside = |path: &PathBuf| path.parent() == Some(folder);
        match self {
            Change::Create(path, _) | Change::Remove(path) => inside(path),
            Change::Rename(from, to) => inside(from) || inside(to),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Change::Create(path, file) => drop(names.insert(path.clone(), *file)),
            Change::Remove(path) => drop(names.remove(path)),
            Change::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

struct State {
    files: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    /// Changes of names that are not durable yet.
    pending: Vec<Change>,
    operations: usize,
    trouble: Trouble,
}

impl State {
    /// Counts an operation; whether it happens.
    fn begin(&mut self, frees: bool) -> Result<()> {
        let at = self.operations;
        self.operations += 1;
        match self.trouble {
            Trouble::Crash(from) if at >= from => Err(Error::other("the power is gone")),
            Trouble::Once(this, kind) if at == this => Err(kind.into()),
            Trouble::From(from, kind) if at >= from && !frees => Err(kind.into()),
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.pending.push(change);
    }
}

/// The disk; clones are the same one.
#[derive(Clone)]
pub struct Disk(Rc<RefCell<State>>);

impl Disk {
    pub fn new(trouble: Trouble) -> Self {
        Self(Rc::new(RefCell::new(State {
            files: Vec::new(),
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            pending: Vec::new(),
            operations: 0,
            trouble,
        })))
    }

    /// Operations so far.
    pub fn operations(&self) -> usize {
        self.0.borrow().operations
    }

    /// What may become of the names that are not durable: every subset of their changes where those are few, else draws.
    pub fn fates_of_names(&self) -> Vec<Fate> {
        match self.0.borrow().pending.len() {
            few @ 0..=6 => (0..1 << few).map(Fate::These).collect(),
            _ => Fate::all(60),
        }
    }

    /// The same disk with nothing wrong any more, the power never having gone.
    pub fn repaired(&self) -> Self {
        self.0.borrow_mut().trouble = Trouble::Never;
        self.clone()
    }

    /// From now on `trouble`, with operations counted from here.
    pub fn troubled(&self, trouble: Trouble) {
        let mut state = self.0.borrow_mut();
        (state.operations, state.trouble) = (0, trouble);
    }

    /// Another disk, as this one is after the power came back.
    pub fn after_crash(&self, data: Fate, names: Fate) -> Self {
        let state = self.0.borrow();
        let mut durable = state.durable.clone();
        let spared = state.pending.iter().enumerate().filter(|(at, _)| names.spares(*at as u64));
        spared.for_each(|(_, change)| change.apply(&mut durable));
        let files: Vec<Content> = state.files.iter().enumerate().map(|(at, file)| survivors(file, at, data)).collect();
        Self(Rc::new(RefCell::new(State {
            files,
            names: durable.clone(),
            durable,
            pending: Vec::new(),
            operations: 0,
            trouble: Trouble::Never,
        })))
    }

    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.0.borrow();
        state.names.get(Path::new(path)).map(|&file| state.files[file].now.clone())
    }

    fn open_file(&self, file: usize) -> Box<dyn Stored> {
        Box::new(Open { disk: self.clone(), file })
    }
}

/// What is left of a file: every sector that changed has its fate, and so has the length.
fn survivors(file: &Content, number: usize, fate: Fate) -> Content {
    let draw = |sector: usize| (number as u64) << 32 | sector as u64;
    let len = if fate.spares(draw(u32::MAX as usize)) { file.now.len() } else { file.durable.len() };
    let mut left = vec![0; len];
    for (sector, to) in left.chunks_mut(SECTOR).enumerate() {
        let old = file.durable.get(sector * SECTOR..).unwrap_or_default();
        let new = file.now.get(sector * SECTOR..).unwrap_or_default();
        let from = if fate.spares(draw(sector)) { new } else { old };
        let len = to.len().min(from.len());
        to[..len].copy_from_slice(&from[..len]);
        let changed = new.get(..to.len()) != old.get(..to.len());
        if let (Fate::Torn(seed), true) = (fate, changed) {
            match Philox::new(seed, 2).below(draw(sector), 3) {
                0 => to.fill(0xa5),
                1 => {
                    let half = len / 2;
                    let other = if fate.spares(draw(sector)) { old } else { new };
                    let end = len.min(other.len());
                    if half < end {
                        to[half..end].copy_from_slice(&other[half..end]);
                    }
                }
                _ => {}
            }
        }
    }
    Content { durable: left.clone(), now: left }
}

impl Storage for Disk {
    fn create(&self, path: &Path) -> Result<Box<dyn Stored>> {
        let mut state = self.0.borrow_mut();
        state.begin(false)?;
        state.files.push(Content::default());
        let file = state.files.len() - 1;
        state.change(Change::Create(path.into(), file));
        drop(state);
        Ok(self.open_file(file))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Stored>> {
        self.0.borrow_mut().begin(true)?;
        let file = self.0.borrow().names.get(path).copied();
        Ok(self.open_file(file.ok_or(ErrorKind::NotFound)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.0.borrow_mut();
        state.begin(false)?;
        if !state.names.contains_key(from) {
            return Err(ErrorKind::NotFound.into());
        }
        state.change(Change::Rename(from.into(), to.into()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.0.borrow_mut();
        state.begin(true)?;
        if !state.names.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        state.change(Change::Remove(path.into()));
        Ok(())
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        let mut state = self.0.borrow_mut();
        state.begin(false)?;
        let (now, later): (Vec<Change>, Vec<Change>) =
            std::mem::take(&mut state.pending).into_iter().partition(|change| change.touches(folder));
        now.iter().for_each(|change| change.apply(&mut state.durable));
        state.pending = later;
        Ok(())
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>> {
        self.0.borrow_mut().begin(true)?;
        let state = self.0.borrow();
        let inside = state.names.keys().filter(|path| path.parent() == Some(folder));
        Ok(inside.map(|path| path.file_name().unwrap().to_str().unwrap().to_string()).collect())
    }

    /// Folders are simply there.
    fn make_folder(&self, _: &Path) -> Result<()> {
        self.0.borrow_mut().begin(false)
    }

    fn remove_folder(&self, _: &Path) -> Result<()> {
        self.0.borrow_mut().begin(true)
    }
}

struct Open {
    disk: Disk,
    file: usize,
}

impl Stored for Open {
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.disk.0.borrow_mut();
        let done = state.begin(false);
        // What a failed write had written before it failed is there.
        let bytes = if done.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let now = &mut state.files[self.file].now;
        let (at, end) = (at as usize, at as usize + bytes.len());
        if now.len() < end {
            now.resize(end, 0);
        }
        now[at..end].copy_from_slice(bytes);
        done
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let mut state = self.disk.0.borrow_mut();
        state.begin(true)?;
        let now = &state.files[self.file].now;
        let from = now.get(at as usize..at as usize + bytes.len()).ok_or(ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(from);
        Ok(())
    }

    fn bytes(&self) -> Result<u64> {
        let mut state = self.disk.0.borrow_mut();
        state.begin(true)?;
        Ok(state.files[self.file].now.len() as u64)
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        let mut state = self.disk.0.borrow_mut();
        state.begin(false)?;
        state.files[self.file].now.resize(bytes as usize, 0);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let mut state = self.disk.0.borrow_mut();
        state.begin(false)?;
        let file = &mut state.files[self.file];
        file.durable = file.now.clone();
        Ok(())
    }
}
