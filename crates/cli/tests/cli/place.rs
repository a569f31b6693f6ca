//! A folder that lives as long as a test, and the program run in it. A run that fails must leave the folder as it was.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// No run of a test takes a minute; one that waits for ever ends here.
const DEADLINE: Duration = Duration::from_secs(300);

/// A folder of a test's own.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("tmp")).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, making the folders before it.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Makes a named pipe, which nobody writes to.
    #[cfg(unix)]
    pub fn fifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    /// Writes a data file of `{"text": …}` records.
    pub fn texts<T: AsRef<str>>(&self, name: &str, texts: &[T]) -> PathBuf {
        let lines = texts.iter().map(|text| format!("{}\n", serde_json::json!({ "text": text.as_ref() })));
        self.file(name, lines.collect::<String>())
    }

    /// The program with words that have no spaces in them; temporary files go to this folder too.
    pub fn pocketune(&self, words: &str) -> Run<'_> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pocketune"));
        command.args(words.split_whitespace()).current_dir(self.0.path()).env("TMPDIR", self.path("tmp"));
        command.env("XDG_CACHE_HOME", self.path("cache")).env_remove("RUST_BACKTRACE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { command, place: self }
    }

    /// Everything in the folder, with sizes, so that a changed file is seen too. A running program may take away what was just listed.
    pub fn listing(&self) -> BTreeSet<(PathBuf, u64)> {
        let (mut found, mut open) = (BTreeSet::new(), vec![self.0.path().to_path_buf()]);
        while let Some(folder) = open.pop() {
            let Ok(entries) = fs::read_dir(&folder) else {
                assert_ne!(folder, self.0.path());
                continue;
            };
            for entry in entries.map(|entry| entry.unwrap()) {
                let Ok(meta) = entry.path().symlink_metadata() else { continue };
                found.insert((entry.path(), if meta.is_file() { meta.len() } else { 0 }));
                if meta.is_dir() {
                    open.push(entry.path());
                }
            }
        }
        found
    }
}

/// A command that is being put together.
pub struct Run<'a> {
    command: Command,
    place: &'a Place,
}

/// What a run printed.
pub struct Said {
    pub stdout: String,
    pub stderr: String,
}

impl Run<'_> {
    /// An option whose value may have spaces in it.
    pub fn with(mut self, option: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.arg(option).arg(value);
        self
    }

    pub fn word(mut self, word: impl AsRef<OsStr>) -> Self {
        self.command.arg(word);
        self
    }

    /// More words that have no spaces in them.
    pub fn words(mut self, words: &str) -> Self {
        self.command.args(words.split_whitespace());
        self
    }

    pub fn model(self, path: impl AsRef<Path>) -> Self {
        self.with("--model", path.as_ref())
    }

    pub fn data(self, path: impl AsRef<Path>) -> Self {
        self.with("--data", path.as_ref())
    }

    /// Where `train` puts its adapter, inside the test's folder.
    pub fn into(self, folder: &str) -> Self {
        let folder = self.place.path(folder);
        self.with("--adapter-path", folder)
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// What it reads on standard input.
    pub fn reading(mut self, text: &str) -> Self {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).and_then(|()| file.rewind()).unwrap();
        self.command.stdin(file);
        self
    }

    /// Standard input stays open, for [`Child::stdin`], and what it says goes to a file, where it can be seen how much that is.
    pub fn answering(mut self, file: &str) -> Self {
        self.command.stdin(Stdio::piped()).stdout(fs::File::create(self.place.path(file)).unwrap());
        self
    }

    /// Runs it by a shell script, as its `"$@"`.
    pub fn through(mut self, script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(self.command.get_program()).args(self.command.get_args());
        command.current_dir(self.place.0.path()).env("TMPDIR", self.place.path("tmp")).env_remove("RUST_BACKTRACE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command = command;
        self
    }

    pub fn start(mut self) -> Child {
        self.command.spawn().unwrap()
    }

    /// Runs; it must end well.
    pub fn succeeds(self) -> Said {
        let (status, said) = wait(self.start());
        assert!(status.success(), "{status}: {}", said.stderr);
        said
    }

    /// Runs; it must stop early, with a line that says how to go on.
    pub fn stops_early(self) -> Said {
        let (status, said) = wait(self.start());
        assert_eq!(status.code(), Some(75), "{status}: {}", said.stderr);
        let last = said.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("Stopped "), "{}", said.stderr);
        said
    }

    /// Runs; it must refuse with one line, say each of `words` in it, and leave nothing behind.
    pub fn refuses(self, words: &[&str]) {
        let said = self.stops(words);
        assert_eq!(said.lines().count(), 1, "more than the error: {said}");
    }

    /// As [`Run::refuses`], where notes about data and plan come first. The result is everything said on standard error.
    pub fn stops(self, words: &[&str]) -> String {
        let (place, before) = (self.place, self.place.listing());
        let said = self.fails(words);
        assert_eq!(said.stdout, "");
        assert_eq!(place.listing(), before, "something was left behind");
        said.stderr
    }

    /// Runs; it must end with one line of error, last of all it says, and each of `words` in it.
    pub fn fails(self, words: &[&str]) -> Said {
        let (status, said) = wait(self.start());
        assert_eq!(status.code(), Some(1), "{status}: {}", said.stderr);
        let errors: Vec<&str> = said.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{}", said.stderr);
        assert_eq!(said.stderr.lines().last(), Some(errors[0]));
        for word in words {
            assert!(errors[0].contains(word), "{word:?} is not in: {}", errors[0]);
        }
        said
    }

    /// Runs; the words themselves must be refused, with usage help, and nothing may be left behind.
    pub fn misused(self, words: &[&str]) {
        let (place, before) = (self.place, self.place.listing());
        let (status, said) = wait(self.start());
        assert_eq!(status.code(), Some(2), "{status}: {}", said.stderr);
        assert!(said.stderr.starts_with("error: "), "{}", said.stderr);
        for word in words {
            assert!(said.stderr.contains(word), "{word:?} is not in: {}", said.stderr);
        }
        assert_eq!(said.stdout, "");
        assert_eq!(place.listing(), before, "something was left behind");
    }
}

/// Waits for the end, reading both outputs; a panic anywhere is a failure of the test.
pub fn wait(mut child: Child) -> (ExitStatus, Said) {
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("still running after {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |reader: Option<std::thread::JoinHandle<Vec<u8>>>| {
        reader.map_or(String::new(), |reader| String::from_utf8(reader.join().unwrap()).unwrap())
    };
    let said = Said { stdout: text(stdout), stderr: text(stderr) };
    assert!(!said.stderr.contains("panicked"), "{}", said.stderr);
    (status, said)
}

fn drain(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}
