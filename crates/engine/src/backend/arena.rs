//! The one allocation of a run: zeroed anonymous memory, handed out as slices of floats. `unsafe` because slices of one arena may be
//! held together; the plan's check says that they do not overlap.

use std::ops::Range;

use memmap2::MmapMut;

use crate::error::{Error, Result};

/// The smallest page that a system has.
const PAGE: usize = 4096;

/// A stretch of anonymous memory.
pub struct Arena {
    start: *mut f32,
    len: usize,
    _map: MmapMut,
}

impl Arena {
    /// An arena of `len` floats, all zero.
    ///
    /// # Errors
    /// When the system has no such stretch of memory.
    pub fn new(len: usize) -> Result<Self> {
        let refused =
            |source: std::io::Error| Error::System(format!("the system refused {len} floats for the arena: {source}"));
        let bytes = len.checked_mul(4).ok_or_else(|| refused(std::io::ErrorKind::OutOfMemory.into()))?;
        let mut map = MmapMut::map_anon(bytes.max(4)).map_err(refused)?;
        // Far fewer pages to look up, and no more of them than the plan counts: only those that lie wholly inside are large.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        // All memory is taken now: what the plan promises is there before the first step, and nothing grows when a longer batch comes.
        for byte in map.iter_mut().step_by(PAGE) {
            *byte = 0;
        }
        Ok(Self { start: map.as_mut_ptr().cast(), len, _map: map })
    }

    /// A part, to read.
    ///
    /// # Safety
    /// No live slice that may be written overlaps it.
    pub unsafe fn read<'a>(&self, range: Range<usize>) -> &'a [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of an arena of {}", self.len);
        // SAFETY: inside the mapping, which is aligned to a page; no writer by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// A part, to write.
    ///
    /// # Safety
    /// No other live slice overlaps it, and the arena outlives it.
    pub unsafe fn write<'a>(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of an arena of {}", self.len);
        // SAFETY: inside the mapping, which is aligned to a page; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// A part, to read, while nothing else is borrowed.
    pub fn get(&self, range: Range<usize>) -> &[f32] {
        // SAFETY: writers come from `&mut self` or from `Cpu`, which ends them before it gives the arena out.
        unsafe { self.read(range) }
    }

    /// A part, to write, while nothing else is borrowed.
    pub fn get_mut(&mut self, range: Range<usize>) -> &mut [f32] {
        // SAFETY: `&mut self` is exclusive.
        unsafe { self.write(range) }
    }
}
