//! A read-only mapping of a regular file, or bytes that the program has or holds.
//!
//! The only place of this crate with `unsafe`. It refuses what is no regular file (a FIFO would block, a device has no
//! end) and empty files. It never writes, and never reads a page that nobody asked for.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// How far beyond what is released pages go with it: recent kernels map whole stretches of the page cache around one that is touched, up to a large page.
#[cfg(unix)]
const AROUND: usize = 2 << 20;

/// A file's bytes, shared between clones.
#[derive(Clone, Debug)]
pub struct Mapped {
    path: Arc<Path>,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
enum Bytes {
    Map(Arc<Mmap>),
    Static(&'static [u8]),
    Held(Arc<[u8]>),
}

impl Mapped {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// When it is missing, not a regular file, empty, or refused by the system.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.into(), source };
        let file = open_regular(path)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(Error::Empty { path: path.into() });
        }
        // SAFETY: the mapping is read-only and private to this type, which hands out shared slices only. Another
        // process that shortens or rewrites the file while it is mapped is outside what any mapping can guard against;
        // the user's model files are taken to stay as they are while the program runs, and every value read is checked
        // where it is used.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        // Of a large page that is mapped as one, no part can be let go: the rest would come back with the next byte that is touched. A system that can't be
        // asked has none.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::NoHugePage);
        Ok(Self { path: path.into(), bytes: Bytes::Map(Arc::new(map)) })
    }

    /// The same bytes under the name that the user knows, where a link was resolved.
    pub(crate) fn named(self, path: &Path) -> Self {
        Self { path: path.into(), ..self }
    }

    /// Bytes that are part of the program, under a name for messages.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Self {
        Self { path: Path::new(name).into(), bytes: Bytes::Static(bytes) }
    }

    /// Bytes that are held in memory, under a name for messages.
    pub fn from_bytes(name: &str, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self { path: Path::new(name).into(), bytes: Bytes::Held(bytes.into()) }
    }

    /// The file's path, or the name given to bytes that were in no file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Map(map) => map,
            Bytes::Static(bytes) => bytes,
            Bytes::Held(bytes) => bytes,
        }
    }

    /// Asks the system to load `len` bytes from `offset` soon. Advice: nothing depends on its being followed.
    pub fn read_ahead(&self, offset: usize, len: usize) {
        #[cfg(unix)]
        if let (Bytes::Map(map), true) = (&self.bytes, self.contains(offset, len)) {
            // A system that can't take the advice loads pages when they are touched.
            let _ = map.advise_range(memmap2::Advice::WillNeed, offset, len);
        }
    }

    /// Takes `len` bytes from `offset`, and what the system may have mapped around them, out of this process's memory; touching them loads them again, with
    /// the same content.
    pub fn release(&self, offset: usize, len: usize) {
        #[cfg(unix)]
        if let (Bytes::Map(map), true) = (&self.bytes, self.contains(offset, len)) {
            self.forget(offset.saturating_sub(AROUND), (offset + len + AROUND).min(map.len()));
        }
    }

    /// Maps the two ends of `len` bytes from `offset` before anything between them, and lets go what the system mapped beyond: so that no more than
    /// that part stays mapped when it is read.
    pub fn enter(&self, offset: usize, len: usize) {
        #[cfg(unix)]
        if let (Bytes::Map(map), true) = (&self.bytes, len > 0 && self.contains(offset, len)) {
            // SAFETY: asks for a number.
            let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
            let (start, end) = (offset / page * page, (offset + len).next_multiple_of(page));
            std::hint::black_box(map[offset + len - 1]);
            self.forget(end, (end + AROUND).min(map.len()));
            std::hint::black_box(map[offset]);
            self.forget(start.saturating_sub(AROUND), start);
        }
    }

    /// Takes whole pages out of this process's memory.
    #[cfg(unix)]
    fn forget(&self, start: usize, end: usize) {
        if let (Bytes::Map(map), true) = (&self.bytes, start < end) {
            // SAFETY: the mapping is shared, read-only and backed by a file, so that dropped pages are read from the
            // file again: no slice that is handed out changes its content.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        }
    }

    #[cfg(unix)]
    fn contains(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.bytes().len())
    }
}

/// From now on a mapped file that became shorter, or whose disk fails, ends the process with one line and status 1 when the missing part
/// is touched, as any other error does; without it the system ends the process with a signal. Nothing is written or cleaned up on the way, so what
/// is on disk is what a power cut would leave. For a program to call at its start; a library does not decide about signals.
pub fn outlive_short_files() {
    #[cfg(unix)]
    {
        extern "C" fn end(_: libc::c_int) {
            const LINE: &[u8] = b"error: a file that is in use became shorter or can't be read any more; was it replaced, or its disk removed?\n";
            // SAFETY: both calls may be made from a signal handler, and the bytes are static.
            unsafe {
                libc::write(2, LINE.as_ptr().cast(), LINE.len());
                libc::_exit(1);
            }
        }
        let handler: extern "C" fn(libc::c_int) = end;
        // SAFETY: the handler calls nothing but what a handler may, and never returns to the code that was interrupted.
        unsafe {
            libc::signal(libc::SIGBUS, handler as libc::sighandler_t);
        }
    }
}

/// Opens a regular file to be read.
///
/// # Errors
/// When it is missing, not a regular file, or refused by the system.
pub fn open_regular(path: &Path) -> Result<File> {
    let io = |source| Error::Io { path: path.into(), source };
    // Looked at before it is opened, since opening a device can have effects; and again after, since names can be moved.
    check_regular(path, &metadata(path)?)?;
    let file = open_without_blocking(path).map_err(io)?;
    check_regular(path, &file.metadata().map_err(io)?)?;
    Ok(file)
}

/// What the system says of `path`, links followed.
pub(crate) fn metadata(path: &Path) -> Result<Metadata> {
    std::fs::metadata(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => Error::Missing { path: PathBuf::from(path) },
        _ => Error::Io { path: path.into(), source },
    })
}

fn check_regular(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() {
        Ok(())
    } else {
        Err(Error::NotAFile { path: path.into(), found: kind(metadata.file_type()) })
    }
}

fn kind(ty: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if ty.is_fifo() {
            return "a FIFO";
        }
        if ty.is_char_device() || ty.is_block_device() {
            return "a device";
        }
        if ty.is_socket() {
            return "a socket";
        }
    }
    if ty.is_dir() { "a folder" } else { "something else" }
}

/// A FIFO that took the file's place after it was looked at must not hang the program.
fn open_without_blocking(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.open(path)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// KiB of `file` that are in this process's memory.
    fn held(file: &Path) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_file = maps.split_once(file.to_str().unwrap()).expect("it is mapped").1;
        let rss = of_file.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// A file of 64 MiB, mapped.
    fn ones() -> (tempfile::TempDir, PathBuf, Mapped) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 64 << 20]).unwrap();
        let file = Mapped::open(&path).unwrap();
        (folder, path, file)
    }

    #[test]
    fn what_is_entered_at_its_ends_is_all_that_is_mapped_when_it_is_read() {
        let (_folder, path, file) = ones();
        for (offset, len) in
            [(0, 1), (5, 300), ((3 << 20) + 5, 4 << 20), ((11 << 20) - 7, 14), ((60 << 20) + 1, (4 << 20) - 1)]
        {
            file.enter(offset, len);
            let read: usize = file.bytes()[offset..offset + len].iter().map(|&byte| usize::from(byte)).sum();
            assert_eq!(read, len);
            let pages = ((offset + len).next_multiple_of(4096) - offset / 4096 * 4096) / 1024;
            assert!((1..=pages).contains(&held(&path)), "{offset} {len}: {} KiB of {pages}", held(&path));
            file.release(offset, len);
            assert_eq!(held(&path), 0);
        }
    }

    #[test]
    fn what_the_system_maps_around_a_byte_goes_with_it() {
        let (_folder, path, file) = ones();
        let touched: usize = file.bytes().iter().step_by(1 << 20).map(|&byte| usize::from(byte)).sum();
        assert!(touched == 64 && held(&path) >= 64 * 4, "{} KiB", held(&path));
        for at in (0..64 << 20).step_by(3 << 20) {
            assert_eq!(file.bytes()[at], 1);
            file.release(at, 1);
        }
        assert_eq!(held(&path), 0);
    }
}
