//! The spill file and the thread that reads and writes it while the processor computes.
//!
//! Requests are done in order, so that one number says which are done. A request borrows a stretch of the arena until it is
//! waited for; the plan keeps that stretch untouched so long.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Requests that may wait; one more blocks.
const QUEUE: usize = 64;
/// Bytes of the thread's stack; part of the memory plan.
pub const STACK_BYTES: usize = 64 * 1024;

/// A request, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Clone, Copy)]
struct Request {
    write: bool,
    start: *mut f32,
    len: usize,
    at: u64,
}

// SAFETY: the stretch of memory is lent to the thread until the request is waited for; see `Disk::write` and `Disk::read`.
unsafe impl Send for Request {}

struct Queue {
    waiting: [Option<Request>; QUEUE],
    begun: u64,
    asked: u64,
    done: u64,
    failed: Option<ErrorKind>,
    stop: bool,
}

struct Shared {
    file: File,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A file with a thread.
pub struct Disk {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Takes over `file`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(file: File) -> Result<Self> {
        let queue = Queue { waiting: [None; QUEUE], begun: 0, asked: 0, done: 0, failed: None, stop: false };
        let shared = Arc::new(Shared { file, queue: Mutex::new(queue), changed: Condvar::new() });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("pocketune-disk".into())
            .stack_size(STACK_BYTES)
            .spawn(move || serve(&worker))?;
        let disk = Self { shared, thread: Some(thread) };
        // SAFETY: nothing is lent. Once that is done the thread runs, and has allocated what a thread does as it starts.
        disk.wait(unsafe { disk.read(&mut [], 0) })?;
        Ok(disk)
    }

    /// Begins to write `from` at float `at` of the file.
    ///
    /// # Safety
    /// `from` is not written, and stays where it is, until the ticket is waited for.
    pub unsafe fn write(&self, from: &[f32], at: usize) -> Ticket {
        self.ask(Request { write: true, start: from.as_ptr().cast_mut(), len: from.len(), at: at as u64 * 4 })
    }

    /// Begins to read into `to` from float `at` of the file.
    ///
    /// # Safety
    /// `to` is neither read nor written, and stays where it is, until the ticket is waited for.
    pub unsafe fn read(&self, to: &mut [f32], at: usize) -> Ticket {
        self.ask(Request { write: false, start: to.as_mut_ptr(), len: to.len(), at: at as u64 * 4 })
    }

    fn ask(&self, request: Request) -> Ticket {
        let mut queue = self.shared.queue.lock().expect("the disk thread does not panic");
        while queue.asked - queue.done >= QUEUE as u64 {
            queue = self.shared.changed.wait(queue).expect("the disk thread does not panic");
        }
        let slot = (queue.asked % QUEUE as u64) as usize;
        queue.waiting[slot] = Some(request);
        queue.asked += 1;
        let ticket = Ticket(queue.asked);
        drop(queue);
        self.shared.changed.notify_all();
        ticket
    }

    /// Waits until a request is done.
    ///
    /// # Errors
    /// When it or any before it failed.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        let mut queue = self.shared.queue.lock().expect("the disk thread does not panic");
        while queue.done < ticket.0 {
            queue = self.shared.changed.wait(queue).expect("the disk thread does not panic");
        }
        queue.failed.map_or(Ok(()), |kind| Err(Error::new(kind, "the spill file failed")))
    }

    /// Waits until every request is done, be it in vain: the memory that was lent is the lender's again.
    pub fn settle(&self) {
        let mut queue = self.shared.queue.lock().expect("the disk thread does not panic");
        while queue.done < queue.asked {
            queue = self.shared.changed.wait(queue).expect("the disk thread does not panic");
        }
    }

    /// Reads at once.
    ///
    /// # Errors
    /// The system's.
    pub fn read_now(&self, to: &mut [f32], at: usize) -> Result<()> {
        self.shared.file.read_exact_at(bytemuck::cast_slice_mut(to), at as u64 * 4)
    }

    /// Writes at once.
    ///
    /// # Errors
    /// The system's.
    pub fn write_now(&self, from: &[f32], at: usize) -> Result<()> {
        self.shared.file.write_all_at(bytemuck::cast_slice(from), at as u64 * 4)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Ok(mut queue) = self.shared.queue.lock() {
            queue.stop = true;
        }
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to report that `wait` did not.
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared) {
    loop {
        let request = {
            let mut queue = shared.queue.lock().expect("the step's thread does not panic here");
            loop {
                if queue.begun < queue.asked {
                    let slot = (queue.begun % QUEUE as u64) as usize;
                    queue.begun += 1;
                    break queue.waiting[slot].take().expect("a request lies in its slot");
                }
                if queue.stop {
                    return;
                }
                queue = shared.changed.wait(queue).expect("the step's thread does not panic here");
            }
        };
        // SAFETY: lent by the maker of the request until it is waited for.
        let memory = unsafe { std::slice::from_raw_parts_mut(request.start.cast::<u8>(), request.len * 4) };
        let result = if request.write {
            shared.file.write_all_at(memory, request.at)
        } else {
            shared.file.read_exact_at(memory, request.at)
        };
        let mut queue = shared.queue.lock().expect("the step's thread does not panic here");
        queue.done += 1;
        if let Err(error) = result {
            queue.failed = queue.failed.or(Some(error.kind()));
        }
        drop(queue);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_in_any_order() {
        let disk = Disk::new(tempfile::tempfile().unwrap()).unwrap();
        let values: Vec<Vec<f32>> = (0..100).map(|i| vec![i as f32; 1000 + i]).collect();
        // SAFETY: `values` is not touched until the last ticket is waited for.
        let tickets: Vec<Ticket> =
            values.iter().enumerate().map(|(i, value)| unsafe { disk.write(value, i * 2000) }).collect();
        disk.wait(*tickets.last().unwrap()).unwrap();
        for (i, value) in values.iter().enumerate().rev() {
            let mut back = vec![0.0; value.len()];
            // SAFETY: `back` is not touched until its ticket is waited for.
            let ticket = unsafe { disk.read(&mut back, i * 2000) };
            disk.wait(ticket).unwrap();
            assert_eq!(&back, value);
        }
    }

    #[test]
    fn a_failed_request_is_reported_when_it_is_waited_for() {
        let disk = Disk::new(tempfile::tempfile().unwrap()).unwrap();
        let mut back = vec![0.0; 10];
        // SAFETY: `back` is not touched until its ticket is waited for.
        let ticket = unsafe { disk.read(&mut back, 0) };
        assert!(disk.wait(ticket).is_err(), "an empty file has nothing to read");
    }
}
