//! Training, evaluation and generation as loops over compiled programs. Clocks, memory figures and words for people come through
//! the [`Host`] that is handed in.

pub mod adapter;
mod advice;
mod batch;
mod best;
mod budget;
mod choices;
mod data;
mod evaluate;
mod generate;
mod options;
mod passes;
mod planning;
mod run;
mod schedule;

pub use advice::{Advice, Pace};
pub use batch::{Batches, Rows};
pub use budget::Budget;
pub use choices::{Score, score};
pub use data::{BadLines, DataOptions, DataSource, Dataset, Prepared, Reader, TemplateChoice, prepare, rehearse};
pub use evaluate::{EvalOptions, evaluate};
pub use generate::{GenerateOptions, Generator, Sampling};
pub use options::{LoraChoice, Optimizer, PolicyChoice, PrecisionChoice, RunOptions, TrainOptions};
pub use passes::Passes;
pub use planning::Task;
pub use run::{Event, Host, Report, Summary, train};
pub use schedule::{Decay, Schedule};
