//! A fixed pool of threads. Work comes as numbered tasks; which thread runs a task never changes what the task computes.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Bytes of stack that each worker gets; part of the memory plan.
pub const STACK_BYTES: usize = 256 * 1024;

/// How often a waiting thread looks again before it sleeps: steps follow each other within microseconds.
const SPINS: u32 = 4000;

/// A job as the workers see it: a borrowed closure whose borrow [`Pool::run`] outlives.
#[derive(Clone, Copy)]
struct Job {
    call: *const (dyn Fn(usize, usize) + Sync),
    tasks: usize,
    /// Threads that tasks are dealt to; the others take what those leave.
    dealt: usize,
}

// SAFETY: the pointer is only dereferenced between the start of `run` and its return, while the closure is borrowed there, and
// the closure is `Sync`.
unsafe impl Send for Job {}

struct Turn {
    generation: u64,
    job: Option<Job>,
    stop: bool,
}

struct Shared {
    turn: Mutex<Turn>,
    start: Condvar,
    /// Mirrors `turn.generation` so that waiting threads can spin without the lock.
    generation: AtomicUsize,
    /// Each thread's next task.
    next: Vec<Next>,
    busy: AtomicUsize,
}

/// A counter with cache lines of its own.
#[repr(align(128))]
struct Next(AtomicUsize);

/// The tasks that `thread` of `threads` begins with.
pub(crate) fn own(tasks: usize, thread: usize, threads: usize) -> Range<usize> {
    tasks * thread / threads..tasks * (thread + 1) / threads
}

/// `threads - 1` workers plus the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool in which `threads` threads work, the caller's included.
    ///
    /// # Errors
    /// The system's, when a thread can't be started.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            turn: Mutex::new(Turn { generation: 0, job: None, stop: false }),
            start: Condvar::new(),
            generation: AtomicUsize::new(0),
            next: (0..threads.max(1)).map(|_| Next(AtomicUsize::new(0))).collect(),
            busy: AtomicUsize::new(0),
        });
        let workers = (1..threads.max(1))
            .map(|worker| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("pocketune-{worker}"))
                    .stack_size(STACK_BYTES)
                    .spawn(move || work(&shared, worker))
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        Ok(Self { shared, workers })
    }

    /// Threads that take part in a job.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `call(task, thread)` for every task below `tasks` and returns when all are done. `thread` is below
    /// [`Pool::threads`] and no two concurrent calls share it, so that it may index scratch memory. Each thread begins with tasks of its own, the
    /// same ones in every job of as many: what it wrote in one is near it in the next.
    pub fn run(&self, tasks: usize, call: &(dyn Fn(usize, usize) + Sync)) {
        self.deal(tasks, self.threads(), call);
    }

    /// As [`Pool::run`], with tasks begun in their order whoever is free: for those that cost less and less.
    pub fn run_in_order(&self, tasks: usize, call: &(dyn Fn(usize, usize) + Sync)) {
        self.deal(tasks, 1, call);
    }

    fn deal(&self, tasks: usize, dealt: usize, call: &(dyn Fn(usize, usize) + Sync)) {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|task| call(task, 0));
            return;
        }
        // SAFETY: only the lifetime changes. Every worker is done with the job before this function returns.
        let call: *const (dyn Fn(usize, usize) + Sync) = unsafe {
            std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), &'static (dyn Fn(usize, usize) + Sync)>(call)
        };
        let job = Job { call, tasks, dealt };
        for (thread, next) in self.shared.next[..dealt].iter().enumerate() {
            next.0.store(own(tasks, thread, dealt).start, Ordering::Relaxed);
        }
        self.shared.busy.store(self.workers.len(), Ordering::Relaxed);
        {
            let mut turn = self.shared.turn.lock().expect("no thread panics holding the lock");
            turn.generation += 1;
            turn.job = Some(job);
            self.shared.generation.store(turn.generation as usize, Ordering::Release);
            self.shared.start.notify_all();
        }
        take_tasks(&self.shared, job, 0);
        let mut spins = 0;
        while self.shared.busy.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let mut turn = self.shared.turn.lock().expect("no thread panics holding the lock");
            turn.stop = true;
            turn.generation += 1;
            self.shared.generation.store(turn.generation as usize, Ordering::Release);
            self.shared.start.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker that panicked took the process's abort path already; nothing is left to report here.
            let _ = worker.join();
        }
    }
}

/// Runs the thread's own tasks, then what others have left of theirs.
fn take_tasks(shared: &Shared, job: Job, thread: usize) {
    let first = thread.min(job.dealt);
    for whose in (first..job.dealt).chain(0..first) {
        let end = own(job.tasks, whose, job.dealt).end;
        loop {
            let task = shared.next[whose].0.fetch_add(1, Ordering::Relaxed);
            if task >= end {
                break;
            }
            // SAFETY: `run` has not returned, since this thread still counts as busy (or is the caller itself).
            unsafe { (*job.call)(task, thread) }
        }
    }
}

/// A worker that panicked would leave `run` waiting forever: end the process instead, after the panic's message.
struct AbortOnPanic;
impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let _guard = AbortOnPanic;
    let mut seen = 0;
    loop {
        for _ in 0..SPINS {
            if shared.generation.load(Ordering::Acquire) as u64 != seen {
                break;
            }
            std::hint::spin_loop();
        }
        let job = {
            let mut turn = shared.turn.lock().expect("no thread panics holding the lock");
            while turn.generation == seen {
                turn = shared.start.wait(turn).expect("no thread panics holding the lock");
            }
            seen = turn.generation;
            if turn.stop {
                return;
            }
            turn.job.expect("a generation without stop has a job")
        };
        take_tasks(shared, job, thread);
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 4, 7] {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 3, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let count = |task: usize, thread| {
                    assert!(thread < pool.threads());
                    counts[task].fetch_add(1, Ordering::Relaxed);
                };
                for _ in 0..50 {
                    pool.run(tasks, &count);
                    pool.run_in_order(tasks, &count);
                }
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 100));
            }
        }
    }
}
