//! Training, evaluation and generation as loops over compiled programs. Clocks, memory figures and words for people come through
//! the [`Host`] that is handed in.

pub mod adapter;
mod advice;
mod batch;
mod best;
mod budget;
mod choices;
mod control;
mod conversation;
mod data;
mod evaluate;
mod events;
mod generate;
mod keeper;
mod keeping;
mod method;
mod numbers;
mod options;
mod passes;
mod planning;
mod progress;
mod run;
mod schedule;
mod steps;
mod terms;

pub use advice::{Advice, Pace};
pub use batch::{Batches, Rows};
pub use budget::Budget;
pub use choices::{Score, score};
pub use control::{Control, Job, State};
pub use conversation::{ChatOptions, Conversation, Reply, ReplyEnd};
pub use data::{BadLines, DataOptions, DataSource, Dataset, Prepared, Reader, TemplateChoice, prepare, rehearse};
pub use evaluate::{EvalOptions, evaluate};
pub use events::{Ending, Event, Host, Report, Summary};
pub use generate::{GenerateOptions, Generator, Sampling};
pub use keeper::updates_of;
pub use keeping::{Every, Keeping, Resume, parse_time};
pub use method::{Defaults, Method};
pub use options::{LoraChoice, Optimizer, PolicyChoice, PrecisionChoice, RunOptions, TrainOptions};
pub use passes::Passes;
pub use planning::Task;
pub use run::train;
pub use schedule::{Decay, Schedule};
