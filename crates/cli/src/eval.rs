//! `pocketune eval`.

use pocketune::train::{DataOptions, DataSource, EvalOptions, Score, evaluate, score};
use serde_json::json;

use crate::args::{EvalArgs, LogArg};
use crate::{Failure, say};

/// Measures and prints.
pub fn run(args: EvalArgs) -> Result<(), Failure> {
    let options = EvalOptions {
        model: args.run.source(args.model),
        data: DataOptions { adapter: args.adapter.clone(), ..args.records.options(DataSource::Path(args.data)) },
        adapter: args.adapter,
        batch_size: args.batch_size,
        max_seq_length: args.records.max_seq_length,
        budget: args.run.budget()?,
        run: args.run.options(),
    };
    if args.records.task.is_some() {
        return say_score(&score(&options).map_err(Failure::of_run)?, args.log_format);
    }
    let outcome = evaluate(&options).map_err(Failure::of_run)?;
    let (loss, accuracy) = (outcome.mean_loss(), outcome.accuracy());
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

fn say_score(score: &Score, log: LogArg) -> Result<(), Failure> {
    let share = |count: usize| count as f64 / score.asked.max(1) as f64;
    let (accuracy, frequent) = (share(score.right), share(score.most_frequent));
    say(&match log {
        LogArg::Text => format!(
            "accuracy {:.2} %: {} of {} right; by chance {:.1} %, always the most frequent answer {:.1} %\n",
            100.0 * accuracy,
            score.right,
            score.asked,
            100.0 * score.by_chance,
            100.0 * frequent
        ),
        LogArg::Jsonl => format!(
            "{}\n",
            json!({
                "accuracy": accuracy, "right": score.right, "asked": score.asked,
                "by_chance": score.by_chance, "most_frequent": frequent,
            })
        ),
    });
    Ok(())
}
