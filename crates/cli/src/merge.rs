//! `pocketune merge`: adapters added to their model for good, and what came of it: how much of the change is in the file, and what it does to the loss.

use std::path::{Path, PathBuf};

use pocketune::export::{Changes, Merged, check_output, merge, write_joined};
use pocketune::memory::Peak;
use pocketune::model::Model;
use pocketune::train::{DataOptions, DataSource, EvalOptions, evaluate};
use serde_json::{Value, json};

use crate::args::MergeArgs;
use crate::quantize::{fallbacks, say_fallbacks};
use crate::{Failure, note, say};

/// Plain English to measure on where no data is named.
const SAMPLE: &str = concat!(
    r#"{"text": "The harbour was quiet that morning. A few boats lay on the sand, and the nets hung drying between the posts."}"#,
    "\n",
    r#"{"text": "Question: What is the capital of France?\nAnswer: The capital of France is Paris, which lies on the Seine."}"#,
    "\n",
    r#"{"text": "To make bread you need flour, water, salt and yeast. Mix them, let the dough rise, and bake it until it is brown."}"#,
    "\n",
);

/// Losses of the base model, of the model with its adapters beside it, and of the merged one.
struct Losses([f64; 3]);

/// Merges, and says what was written.
pub fn run(args: MergeArgs) -> Result<(), Failure> {
    let adapters = scaled(&args.adapter, &args.scale)?;
    let source = args.run.source(args.model.clone());
    let model = Model::open(&source).map_err(Failure::new)?;
    let changes = Changes::open(&model, &adapters).map_err(Failure::new)?;
    check_output(&model, args.ty, &args.output).map_err(Failure::new)?;
    // Bad data is found before anything is written.
    let measured = !args.no_loss && (args.data.is_some() || model.tokenizer().is_ok());
    let before = if measured { Some(losses_before(&args, &model, &changes)?) } else { None };
    let merged = merge(&model, &changes, args.ty, &args.output, args.run.budget()?).map_err(Failure::new)?;
    let losses = match before {
        Some([base, beside]) => Some(Losses([base, beside, loss(&args, args.output.clone(), None)?])),
        None => None,
    };
    if args.json {
        say(&format!("{}\n", report(&merged, losses.as_ref(), &args.output)));
    } else {
        describe(&merged, losses.as_ref(), &args);
    }
    Ok(())
}

/// Every adapter with its scale.
fn scaled(adapters: &[PathBuf], scales: &[f64]) -> Result<Vec<(PathBuf, f64)>, Failure> {
    let of = |at: usize| match scales {
        [] => 1.0,
        [one] => *one,
        many => many[at],
    };
    if scales.len() > 1 && scales.len() != adapters.len() {
        let (scales, adapters) = (scales.len(), adapters.len());
        return Err(Failure(format!("--scale: given {scales} times for {adapters} adapters; once, or once for each")));
    }
    Ok(adapters.iter().cloned().enumerate().map(|(at, adapter)| (adapter, of(at))).collect())
}

/// Losses of the model without its adapters and with them beside it.
fn losses_before(args: &MergeArgs, model: &Model, changes: &Changes) -> Result<[f64; 2], Failure> {
    let base = loss(args, args.model.clone(), None)?;
    if changes.is_empty() {
        return Ok([base, base]);
    }
    let joined = std::env::temp_dir().join(format!("pocketune-merge-{}", std::process::id()));
    let beside = write_joined(model, changes, &joined)
        .map_err(Failure::new)
        .and_then(|()| loss(args, args.model.clone(), Some(joined.clone())));
    // Best effort: it lies where the system clears up.
    let _ = std::fs::remove_dir_all(&joined);
    Ok([base, beside?])
}

fn loss(args: &MergeArgs, model: PathBuf, adapter: Option<PathBuf>) -> Result<f64, Failure> {
    let source = match &args.data {
        Some(path) => DataSource::Path(path.clone()),
        None => DataSource::Embedded { train: SAMPLE, valid: SAMPLE },
    };
    let options = EvalOptions {
        model: args.run.source(model),
        adapter,
        data: DataOptions::plain(source),
        batch_size: 1,
        max_seq_length: 512,
        budget: args.run.budget()?,
        run: args.run.options(),
    };
    evaluate(&options).map(|outcome| outcome.mean_loss()).map_err(Failure::of_run)
}

fn describe(merged: &Merged, losses: Option<&Losses>, args: &MergeArgs) {
    let (out, kept) = (args.output.display(), 100.0 * merged.kept.share());
    note(&format!("Merged {} linears into {out} ({:.1} MB)", merged.modules, merged.bytes as f64 / 1e6));
    say_fallbacks(&merged.fallbacks);
    merged.notes.iter().for_each(|line| note(line));
    if let Some((module, share)) = &merged.worst {
        note(&format!("Of the change {kept:.1} % is in the file; least in {module}, {:.1} %", 100.0 * share));
    }
    if let Some(Losses([base, beside, after])) = losses {
        let on = args.data.as_ref().map_or("built-in sentences".into(), |path| path.display().to_string());
        note(&format!("Loss on {on}: {base:.4} without, {beside:.4} with the adapter beside it, {after:.4} merged"));
    }
    if !merged.kept.is_whole() {
        note(&match merged.recommended {
            Some((ty, share)) => {
                let (name, share) = (ty.name(), 100.0 * share);
                format!("Rounding spoils the change: --type {name} keeps {share:.1} % of it, in a .gguf file")
            }
            None => "Rounding spoils the change, and no other type keeps it: use the adapter beside the model".into(),
        });
    }
    note(&format!("Next: pocketune generate --model {out} --prompt ..."));
}

fn report(merged: &Merged, losses: Option<&Losses>, out: &Path) -> Value {
    json!({
        "output": out,
        "bytes": merged.bytes,
        "linears": merged.modules,
        "kept": merged.kept.share(),
        "worst": merged.worst.as_ref().map(|(module, share)| json!({ "module": module, "kept": share })),
        "recommended": merged.recommended.map(|(ty, share)| json!({ "type": ty.name(), "kept": share })),
        "loss": losses.map(|Losses([base, beside, after])| json!({ "base": base, "adapter": beside, "merged": after })),
        "fallbacks": fallbacks(&merged.fallbacks),
        "notes": merged.notes,
        "peak_bytes": Peak::default().look().total,
    })
}
