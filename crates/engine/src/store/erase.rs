//! Taking away what a run left for itself: its checkpoints in `.pocketune`, and files of runs that ended before they could clean up. It knows
//! its own files by their names, touches no others, follows no links, and refuses folders in which there is nothing of a run.

use std::fs;
use std::path::{Path, PathBuf};

use pocketune_formats::peft::{CONFIG_FILE, TENSORS_FILE};

use super::hidden_folder;
use super::lock::RunLock;
use super::updates::UPDATES;
use crate::error::{Error, Result};
use crate::export::BESIDE;

/// What says how an adapter was made, beside it.
pub const HOW: &str = "pocketune.yaml";
/// The model that a run trained itself.
pub const MODEL: &str = "model.gguf";
/// The same as a Hugging Face folder, where it came from one.
pub const MODEL_FOLDER: &str = "model";
/// The chat template that it was trained through.
pub const TEMPLATE: &str = "chat_template.jinja";
/// The tokens that end a reply.
pub const GENERATION: &str = "generation_config.json";

/// The model that the run of a folder trained itself: a file, or a folder where GGUF has no form for it.
pub fn trained_model(run: &Path) -> PathBuf {
    let file = run.join(MODEL);
    if file.is_file() { file } else { run.join(MODEL_FOLDER) }
}

/// Deletes the state of the run whose adapter folder is `run`, and the adapter as well where that is wanted. The result is the number of
/// files that are gone.
///
/// # Errors
/// When there is nothing of a run, a run is still writing there, or the system refuses.
pub fn erase(run: &Path, adapter: bool) -> Result<usize> {
    let io = |error| Error::io(run, error);
    // A link is not followed: what it leads to was not named.
    if !fs::symlink_metadata(run).map_err(io)?.is_dir() {
        return Err(Error::System(format!("{}: not the folder of a run", run.display())));
    }
    let state = hidden_folder(run);
    let has_state = fs::symlink_metadata(&state).is_ok_and(|there| there.is_dir());
    let leftovers = leftovers(run)?;
    if let Some((path, process)) = leftovers.iter().find(|(_, process)| is_running(*process)) {
        return Err(Error::System(format!("{}: process {process} is still running", path.display())));
    }
    let adapters = [CONFIG_FILE, TENSORS_FILE].map(|name| run.join(name));
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
    let is_adapter = adapters.iter().all(|path| is_file(path));
    // A model that somebody keeps in the folder of an adapter is not ours to take.
    let (model, folder) = (run.join(MODEL), run.join(MODEL_FOLDER));
    let is_there = is_file(&model) || is_file(&folder.join("config.json"));
    let is_model = !is_adapter && is_there && made_a_model(run);
    if !has_state && leftovers.is_empty() && !is_adapter && !is_model {
        let fault = format!("{}: nothing of a run is here: no .pocketune, no adapter", run.display());
        return Err(Error::System(fault));
    }
    // Held until all is gone, so that no run begins in between.
    let _lock = if has_state { Some(RunLock::take(run)?) } else { None };
    let mut files = 0;
    let mut remove = |path: &Path| {
        files += 1;
        fs::remove_file(path).map_err(|error| Error::io(path, error))
    };
    for (path, _) in &leftovers {
        remove(path)?;
    }
    if adapter && (is_adapter || is_model) {
        adapters.iter().filter(|_| is_adapter).try_for_each(|path| remove(path))?;
        Some(&model).filter(|model| is_model && is_file(model)).map_or(Ok(()), |path| remove(path))?;
        if is_model && fs::symlink_metadata(&folder).is_ok_and(|there| there.is_dir()) {
            of_a_model(&folder)?.iter().try_for_each(|path| remove(path))?;
            // What a killed run left of it may not be there, and what is somebody else's stays with its folder.
            let _ = fs::remove_dir_all(hidden_folder(&folder));
            let _ = fs::remove_dir(&folder);
        }
        let beside = [HOW, TEMPLATE, GENERATION, UPDATES].map(|name| run.join(name));
        beside.iter().filter(|path| is_file(path)).try_for_each(|path| remove(path))?;
    }
    if has_state {
        // The lock is no file of the run's.
        files += count(&state)? - 1;
        // Links inside are removed, not followed.
        fs::remove_dir_all(&state).map_err(|error| Error::io(&state, error))?;
    }
    if adapter {
        // Whatever else is there is somebody else's, and stays with its folder.
        let _ = fs::remove_dir(run);
    }
    Ok(files)
}

/// The files of a model's folder that a run wrote.
fn of_a_model(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io(folder, error))?;
    let ours = |name: &str| BESIDE.contains(&name) || name.ends_with(".safetensors");
    let is_ours = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(ours) && entry.file_type().is_ok_and(|there| there.is_file())
    };
    Ok(entries.flatten().filter(is_ours).map(|entry| entry.path()).collect())
}

/// Whether what is kept beside the result says that it is a model: adapters have no `store`.
fn made_a_model(run: &Path) -> bool {
    fs::read_to_string(run.join(HOW)).is_ok_and(|how| how.lines().any(|line| line.starts_with("store:")))
}

/// Deletes files in `folder` that runs left which are no more. A folder that isn't there has none.
///
/// # Errors
/// The system's.
pub fn clear_leftovers(folder: &Path) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for (path, process) in leftovers(folder)? {
        if !is_running(process) {
            fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
        }
    }
    Ok(())
}

/// Files of runs that should have been gone by the end of them, with the number of the process that made them.
fn leftovers(folder: &Path) -> Result<Vec<(PathBuf, u32)>> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io(folder, error))?;
    let found = entries.flatten().filter_map(|entry| {
        let process = process_of(entry.file_name().to_str()?)?;
        entry.file_type().ok()?.is_file().then(|| (entry.path(), process))
    });
    Ok(found.collect())
}

/// The process in `.pocketune-spill-12-0`, `.adapter_config.json.12.tmp` or `..pocketune-store-12-0.12.tmp`.
fn process_of(name: &str) -> Option<u32> {
    if let Some(rest) = name.strip_prefix(".pocketune-") {
        let mut words = rest.split('-');
        let known = matches!(words.next(), Some("spill" | "tokens" | "probe" | "store"));
        return words.next().filter(|_| known)?.parse().ok();
    }
    let (file, process) = name.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    let known = [CONFIG_FILE, TENSORS_FILE].contains(&file) || file.starts_with(".pocketune-store-");
    if known { process.parse().ok() } else { None }
}

fn is_running(process: u32) -> bool {
    process != std::process::id() && Path::new("/proc").join(process.to_string()).exists()
}

fn count(folder: &Path) -> Result<usize> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io(folder, error))?;
    entries.flatten().try_fold(0, |files, entry| {
        let is_folder = entry.file_type().is_ok_and(|ty| ty.is_dir());
        Ok(files + if is_folder { count(&entry.path())? } else { 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No process has this number: the highest that Linux gives is below 2^22.
    const NOBODY: u32 = 1 << 30;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn run() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(".pocketune/a")).unwrap();
        let spill = format!(".pocketune-spill-{NOBODY}-0");
        let half = format!(".adapter_model.safetensors.{NOBODY}.tmp");
        for name in [
            CONFIG_FILE,
            TENSORS_FILE,
            ".pocketune/a/state",
            ".pocketune/b",
            HOW,
            "notes.txt",
            ".pocketune-notes",
            &spill,
            &half,
        ] {
            fs::write(root.path().join(name), "x").unwrap();
        }
        root
    }

    #[test]
    fn the_state_of_a_run_goes_and_everything_else_stays() {
        let root = run();
        assert_eq!(erase(root.path(), false).unwrap(), 4);
        assert_eq!(names(root.path()), [".pocketune-notes", CONFIG_FILE, TENSORS_FILE, "notes.txt", HOW]);
        assert_eq!(erase(root.path(), true).unwrap(), 3);
        assert_eq!(names(root.path()), [".pocketune-notes", "notes.txt"]);
        let line = erase(root.path(), true).unwrap_err().to_string();
        assert!(line.ends_with("nothing of a run is here: no .pocketune, no adapter"), "{line}");
    }

    #[test]
    fn an_adapter_folder_of_nothing_else_goes_with_its_adapter() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("adapter");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(CONFIG_FILE), "x").unwrap();
        fs::write(folder.join(TENSORS_FILE), "x").unwrap();
        assert_eq!(erase(&folder, true).unwrap(), 2);
        assert!(!folder.exists());
    }

    #[test]
    fn a_trained_model_goes_where_asked_and_one_beside_an_adapter_stays() {
        let root = tempfile::tempdir().unwrap();
        let (ours, theirs) = (root.path().join("ours"), root.path().join("theirs"));
        for (folder, files) in [(&ours, &[MODEL, HOW][..]), (&theirs, &[MODEL, HOW, CONFIG_FILE, TENSORS_FILE])] {
            fs::create_dir(folder).unwrap();
            files.iter().for_each(|name| fs::write(folder.join(name), "store: bf16\n").unwrap());
        }
        assert_eq!(erase(&ours, false).unwrap(), 0);
        assert_eq!(names(&ours), [MODEL, HOW]);
        assert_eq!(erase(&ours, true).unwrap(), 2);
        assert!(!ours.exists());
        assert_eq!(erase(&theirs, true).unwrap(), 3);
        assert_eq!(names(&theirs), [MODEL]);
        // A model of which nothing says how it was made.
        assert!(erase(&theirs, true).is_err());
        assert_eq!(names(&theirs), [MODEL]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed_and_what_is_no_run_is_not_touched() {
        let (root, other) = (run(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("precious"), "x").unwrap();
        std::os::unix::fs::symlink(other.path(), root.path().join(".pocketune/link")).unwrap();
        erase(root.path(), true).unwrap();
        assert_eq!(names(other.path()), ["precious"]);
        assert!(erase(other.path(), true).is_err());
        assert_eq!(names(other.path()), ["precious"]);
        let link = root.path().join("link");
        std::os::unix::fs::symlink(other.path(), &link).unwrap();
        assert!(erase(&link, true).unwrap_err().to_string().ends_with("not the folder of a run"));
        assert!(erase(Path::new("/nowhere"), true).is_err());
    }

    #[test]
    fn leftovers_of_runs_that_are_no_more_are_cleared_and_those_of_others_stay() {
        let root = run();
        let parent = std::os::unix::process::parent_id();
        let theirs = format!(".pocketune-tokens-{parent}-3");
        fs::write(root.path().join(&theirs), "x").unwrap();
        clear_leftovers(root.path()).unwrap();
        let left = names(root.path());
        assert!(left.contains(&theirs) && !left.iter().any(|name| name.contains(&NOBODY.to_string())), "{left:?}");
        assert!(erase(root.path(), false).unwrap_err().to_string().ends_with("is still running"));
        clear_leftovers(&root.path().join("nowhere")).unwrap();
    }
}
