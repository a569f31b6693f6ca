//! Runs a program over one arena on this machine's processor. It decides nothing and allocates nothing while it runs.

mod arena;
pub mod bench;
mod cpu;
mod disk;
mod rates;
mod weights;

pub use arena::Arena;
pub use cpu::{
    Aim, Alone, Batch, Cpu, Group, LOGITS_PIECE, Law, MOST_DIRECTIONS, Measure, NO_LABEL, Noise, Outcome, Rule, Sides,
    Still,
};
pub use disk::STACK_BYTES as DISK_STACK_BYTES;
pub use rates::{measure_disk, measure_rates, touch_kernels};
pub use weights::{Stored, Weights};
