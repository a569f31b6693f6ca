//! A fixed pool of threads. Work comes as numbered tasks; which thread runs a task never changes what the task computes.

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

struct Shared {
    /// The job; nothing where the pool ends.
    job: UnsafeCell<Option<Job>>,
    /// Whether a worker may enter the job ([`OPEN`]), and how many are in it.
    gate: Line<AtomicUsize>,
    /// Each thread's next task.
    next: Vec<Line<AtomicUsize>>,
    /// Whether a worker went to sleep since they were last woken.
    asleep: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// Set in the gate while the job may have tasks that nobody has begun; below it workers are counted.
const OPEN: usize = 1 << (usize::BITS - 1);

// SAFETY: the job is written while the gate is closed and no worker is in, and read by a worker between entering and leaving. The pointer in it is only
// dereferenced meanwhile, while `run` borrows the closure, which is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Something with cache lines of its own.
#[repr(align(128))]
struct Line<T>(T);

impl Shared {
    /// A job for whoever comes, or the end. The gate is closed and nobody is in.
    fn announce(&self, job: Option<Job>) {
        // SAFETY: no worker is in, and none enters before the next line.
        unsafe { *self.job.get() = job };
        self.gate.0.store(OPEN, Ordering::SeqCst);
        // Who goes to sleep says so and then looks once more: either that is seen here, or the open gate there.
        if self.asleep.swap(false, Ordering::SeqCst) {
            let _sleep = self.sleep.lock().expect("no thread panics holding the lock");
            self.wake.notify_all();
        }
    }

    /// Waits for a job and enters it: looking for a while, then asleep, then again.
    fn enter(&self) {
        loop {
            for _ in 0..SPINS {
                let now = self.gate.0.load(Ordering::Relaxed);
                if now & OPEN != 0
                    && self.gate.0.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    return;
                }
                std::hint::spin_loop();
            }
            let sleep = self.sleep.lock().expect("no thread panics holding the lock");
            self.asleep.store(true, Ordering::SeqCst);
            if self.gate.0.load(Ordering::SeqCst) & OPEN == 0 {
                drop(self.wake.wait(sleep).expect("no thread panics holding the lock"));
            }
        }
    }

    /// Lets no more workers in: every task is begun.
    fn close(&self) {
        self.gate.0.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// A worker that was counted in is not any more.
    fn leave(&self) {
        self.gate.0.fetch_sub(1, Ordering::Release);
    }

    /// Waits until the gate is closed and nobody is in.
    fn wait(&self) {
        let mut spins = 0;
        while self.gate.0.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// The tasks that `thread` of `threads` begins with.
pub(crate) fn own(tasks: usize, thread: usize, threads: usize) -> Range<usize> {
    tasks * thread / threads..tasks * (thread + 1) / threads
}

/// `threads - 1` workers plus the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// A pool is one thread's: two jobs at once would share its counters.
    one_caller: PhantomData<Cell<()>>,
}

impl Pool {
    /// A pool in which `threads` threads work, the caller's included.
    ///
    /// # Errors
    /// The system's, when a thread can't be started.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            gate: Line(AtomicUsize::new(0)),
            next: (0..threads).map(|_| Line(AtomicUsize::new(0))).collect(),
            asleep: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::with_capacity(threads - 1), one_caller: PhantomData };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            // Counted in until it runs: what a thread allocates as it starts is allocated before the first job.
            shared.gate.0.fetch_add(1, Ordering::Relaxed);
            let started = std::thread::Builder::new()
                .name(format!("pocketune-{worker}"))
                .stack_size(STACK_BYTES)
                .spawn(move || work(&shared, worker))
                .inspect_err(|_| pool.shared.leave())?;
            pool.workers.push(started);
        }
        pool.shared.wait();
        Ok(pool)
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
        // SAFETY: only the lifetime changes. Every worker that entered has left the job before this function returns.
        let call: *const (dyn Fn(usize, usize) + Sync) = unsafe {
            std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), &'static (dyn Fn(usize, usize) + Sync)>(call)
        };
        let job = Job { call, tasks, dealt };
        for (thread, next) in self.shared.next[..dealt].iter().enumerate() {
            next.0.store(own(tasks, thread, dealt).start, Ordering::Relaxed);
        }
        self.shared.announce(Some(job));
        take_tasks(&self.shared, job, 0);
        self.shared.close();
        // For those who are in: a worker that had no core has missed the job and holds nothing up.
        self.shared.wait();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // For those who are still starting, where one could not be started.
        self.shared.wait();
        self.shared.announce(None);
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
            // SAFETY: `run` has not returned, since this thread is counted in (or is the caller itself).
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
    shared.leave();
    loop {
        shared.enter();
        // SAFETY: it is not written before this worker has left.
        let Some(job) = (unsafe { *shared.job.get() }) else { return };
        take_tasks(shared, job, thread);
        // Before leaving: nobody else can have opened the gate for the next job meanwhile.
        shared.close();
        shared.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn every_task_runs_once_for_any_number_of_threads() {
        for threads in [1, 2, 4, 7] {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 3, 100] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let count = |task: usize, thread| {
                    assert!(thread < threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                };
                for round in 0..50 {
                    if round % 10 == 9 {
                        // Long enough for workers to fall asleep.
                        std::thread::sleep(std::time::Duration::from_millis(3));
                    }
                    pool.run(tasks, &count);
                    pool.run_in_order(tasks, &count);
                }
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 100));
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_worker_runs_when_a_pool_is_made() {
        for _ in 0..10 {
            let pool = Pool::new(40).unwrap();
            let running: Vec<String> = std::fs::read_dir("/proc/self/task")
                .unwrap()
                // Threads of other tests end meanwhile.
                .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
                .collect();
            // A thread names itself as it starts; no other test has as many.
            for worker in 10..pool.threads() {
                assert!(running.contains(&format!("pocketune-{worker}\n")), "{worker} has not started");
            }
        }
    }

    #[test]
    fn a_worker_that_misses_a_job_does_not_hold_it_up() {
        let pool = Pool::new(2).unwrap();
        let (there, held, over) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let until = |flag: &AtomicBool, limit: Duration| {
            let begun = Instant::now();
            while !flag.load(Ordering::Acquire) && begun.elapsed() < limit {
                std::thread::yield_now();
            }
            flag.load(Ordering::Acquire)
        };
        let (shared, limit) = (&*pool.shared, Duration::from_secs(20));
        std::thread::scope(|scope| {
            // Takes what the worker needs to go to sleep, while that is at work.
            let other = scope.spawn(|| {
                until(&there, limit);
                let _sleep = shared.sleep.lock().unwrap();
                held.store(true, Ordering::Release);
                until(&over, limit)
            });
            pool.run(2, &|_, thread| {
                if thread == 1 {
                    there.store(true, Ordering::Release);
                    until(&held, limit);
                } else {
                    until(&there, limit);
                }
            });
            // Long enough for it to have looked in vain and stand before the lock.
            std::thread::sleep(Duration::from_millis(50));
            let count = AtomicUsize::new(0);
            pool.run(3, &|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            over.store(true, Ordering::Release);
            assert_eq!(count.into_inner(), 3);
            assert!(other.join().unwrap(), "the job was over only when the worker could go on");
        });
    }
}
