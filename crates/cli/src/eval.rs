//! `pocketune eval`.

use pocketune::train::{DataSource, EvalOptions, evaluate};
use serde_json::json;

use crate::args::{EvalArgs, LogArg};
use crate::{Failure, say};

/// Measures and prints.
pub fn run(args: EvalArgs) -> Result<(), Failure> {
    let options = EvalOptions {
        model: args.run.source(args.model),
        adapter: args.adapter,
        data: DataSource::Path(args.data),
        batch_size: args.batch_size,
        max_seq_length: args.max_seq_length,
        budget: args.run.budget()?,
        run: args.run.options(),
    };
    let outcome = evaluate(&options).map_err(Failure::new)?;
    let targets = outcome.targets.max(1) as f64;
    let (loss, accuracy) = (outcome.loss / targets, outcome.hits as f64 / targets);
    say(&match args.log_format {
        LogArg::Text => format!(
            "loss {loss:.4}, perplexity {:.3}, next-token accuracy {:.2} %, over {} tokens\n",
            loss.exp(),
            100.0 * accuracy,
            outcome.targets
        ),
        LogArg::Jsonl => format!(
            "{}\n",
            json!({ "loss": loss, "perplexity": loss.exp(), "accuracy": accuracy, "tokens": outcome.targets })
        ),
    });
    Ok(())
}
