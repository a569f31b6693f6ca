//! What one call takes: the most bytes that its thread held at once above those before it, and the processor time. The numbers are the
//! thread's own, so that neither tests side by side nor a busy machine disturb them. No bytes are counted unless a program installs
//! [`Counting`].

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

/// The system's allocator, counting. To be installed with `#[global_allocator]`.
pub struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counters any more, and nothing to measure either.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: hands every call on to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What a call took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// The most bytes held at once, above those held before.
    pub bytes: usize,
    /// Processor time from start to end.
    pub time: Duration,
}

/// Runs `call` and says what it took.
pub fn measure<T>(call: impl FnOnce() -> T) -> (T, Taken) {
    let before = LIVE.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let start = processor_time();
    let answer = call();
    let time = processor_time().saturating_sub(start);
    let bytes = PEAK.with(Cell::get).saturating_sub(before).max(0) as usize;
    (answer, Taken { bytes, time })
}

/// What this thread has had of a processor so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a value of the right type that outlives the call. Every system with threads has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
