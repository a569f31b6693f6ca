//! The model and the data that travel inside the program, so that it can show what it does anywhere. `demo/` holds the programs that
//! made them.

use pocketune::model::Source;
use pocketune::train::DataSource;

/// A small llama, trained on made-up plain English.
pub const MODEL: Source =
    Source::Embedded { name: "pocketune-demo", bytes: include_bytes!("../../../demo/model.gguf") };

/// The diary of somebody the model has never heard of.
pub const DATA: DataSource = DataSource::Embedded {
    train: include_str!("../../../demo/data/train.jsonl"),
    valid: include_str!("../../../demo/data/valid.jsonl"),
};

/// A question that only the diary answers.
pub const PROMPT: &str = "Question: Where do you live?\nAnswer:";

/// Updates that take well under a minute.
pub const ITERS: usize = 80;

/// A learning rate for so small a model.
pub const LEARNING_RATE: f32 = 3e-3;
