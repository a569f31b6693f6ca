//! What a run's result depends on, in words: two runs with the same terms have the same adapter to the bit. A checkpoint carries its own, and
//! a run that would go on with it is compared before anything is read.

use std::collections::BTreeMap;
use std::path::Path;

use pocketune_formats::ModelFiles;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::TrainOptions;
use crate::error::{Error, Result};
use crate::graph::LoraSpec;
use crate::plan::Machine;

/// Bytes that are looked at in two places of every tensor.
const SAMPLE: usize = 4096;

/// Names of terms that no permission changes: with others, the state has another shape or meaning.
const FIXED: [&str; 8] =
    ["model", "method", "store", "lora-rank", "lora-alpha", "lora-targets", "num-layers", "optimizer"];

/// By name, as the command line calls them where it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms(BTreeMap<String, String>);

impl Terms {
    /// Those of a run over the model and data of these sums.
    pub fn of(options: &TrainOptions, lora: &LoraSpec, machine: Machine, model: [u8; 32], data: [[u8; 32]; 2]) -> Self {
        let decay = options.decay();
        let Machine { isa, precision, .. } = machine;
        let precision = match precision.same_everywhere() {
            true => precision.name().into(),
            false => format!("{} on {}", precision.name(), isa.name()),
        };
        let norm = options.max_grad_norm.map_or("none".into(), |norm| norm.to_string());
        let spikes = options.max_loss_z.map_or("none".into(), |z| z.to_string());
        let terms = [
            ("model", hex(model)),
            ("method", options.method.name().into()),
            ("data", hex(data[0])),
            ("lora-rank", lora.rank.to_string()),
            ("lora-alpha", lora.alpha.to_string()),
            ("lora-targets", format!("{:?}", lora.targets)),
            ("num-layers", format!("{:?}", lora.layers)),
            ("lora-kind", kind(lora)),
            ("lora-plus", options.lora_plus.to_string()),
            ("iters", options.iters.to_string()),
            ("batch-size", options.batch_size.to_string()),
            ("grad-accumulation-steps", options.accumulation.to_string()),
            ("optimizer", format!("{:?}", options.optimizer)),
            ("weight-decay", decay.to_string()),
            ("learning-rate", options.schedule.peak.to_string()),
            ("lr-scheduler", format!("{:?}", options.schedule.decay)),
            ("warmup-steps", options.schedule.warmup.to_string()),
            ("shuffle", options.shuffle.to_string()),
            ("seed", options.seed.to_string()),
            ("drop-backward", options.drop_backward.to_string()),
            ("approx-act", options.derivatives.approx_act.to_string()),
            ("ms-norm", options.derivatives.ms_norm.to_string()),
            ("ce-skip", options.derivatives.ce_skip.to_string()),
            ("zo-eps", options.zo_eps().to_string()),
            ("max-grad-norm", norm),
            ("max-loss-z", spikes),
            ("precision", precision),
            ("lr-min", options.schedule.floor.to_string()),
            ("pack", if options.pack { format!("up to {} tokens", options.max_seq_length) } else { "no".into() }),
        ];
        let turns = options.shifts().map(|shifts| ("turns", format!("{} every {}", shifts.order.word(), shifts.every)));
        let store = options.trains_all().then(|| ("store", options.store.name().to_string()));
        let number = |number: Option<usize>| number.map_or("none".into(), |number| number.to_string());
        // Which adapter is kept depends on these only where the best one is.
        let judged = [
            ("save-best", options.save_best.to_string()),
            ("early-stopping", number(options.early_stopping)),
            ("steps-per-eval", options.steps_per_eval.to_string()),
            ("val-batches", number(options.val_batches)),
            ("validation data", hex(data[1])),
        ];
        let judged = judged.into_iter().filter(|_| options.keeps_best());
        Self(
            terms
                .into_iter()
                .chain(turns)
                .chain(store)
                .chain(judged)
                .map(|(name, value)| (name.into(), value))
                .collect(),
        )
    }

    /// Checks that a run with these terms can go on with a checkpoint that was made with `theirs`.
    ///
    /// # Errors
    /// What differs, where that is not allowed.
    pub fn check(&self, theirs: &Terms, allow_changed: bool, path: &Path) -> Result<()> {
        let none = String::new();
        let value = |terms: &Terms, name: &String| terms.0.get(name).unwrap_or(&none).clone();
        let names: std::collections::BTreeSet<&String> = self.0.keys().chain(theirs.0.keys()).collect();
        let differs = |name: &&&String| value(self, name) != value(theirs, name);
        let changed: Vec<&String> = names.iter().filter(differs).copied().collect();
        let fixed: Vec<&String> = changed.iter().filter(|name| FIXED.contains(&name.as_str())).copied().collect();
        let (listed, hint) = match (allow_changed, fixed.is_empty()) {
            (_, true) if changed.is_empty() => return Ok(()),
            (true, true) => return Ok(()),
            (_, false) => (fixed, "it can't be gone on with"),
            (false, true) => (changed, "--allow-changed goes on nevertheless"),
        };
        let words: Vec<String> = listed
            .into_iter()
            .map(|name| match name.as_str() {
                "model" => "another model".into(),
                "data" => "other data (or another tokenizer, template or length limit)".into(),
                _ => format!("{name} {}, not {}", value(theirs, name), value(self, name)),
            })
            .collect();
        Err(Error::Checkpoint { path: path.into(), fault: format!("made with {}; {hint}", words.join(", ")) })
    }
}

/// What makes adapters other than plain LoRA.
fn kind(lora: &LoraSpec) -> String {
    let LoraSpec { ranks, alphas, stabilized, dora, vera, dropout, classes, .. } = lora;
    let (ranks, alphas) = (&ranks.0, &alphas.0);
    let vera = if *vera { "vera, " } else { "" };
    let head = classes.map_or(String::new(), |classes| format!("head of {classes} classes, "));
    format!("{head}{vera}rslora {stabilized}, dora {dora}, dropout {dropout}, ranks {ranks:?}, alphas {alphas:?}")
}

pub(super) fn hex(sum: [u8; 32]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What tells a model from any other that was ever trained or quantised: the SHA-256 of all tensors' names, types, shapes and places, of
/// [`SAMPLE`] bytes at the start and in the middle of each, and of the configuration. A file that was made to deceive can have the same.
pub fn model_sum(files: &ModelFiles) -> [u8; 32] {
    let mut hash = Sha256::new();
    if let Some(config) = files.hf_config() {
        hash.update(config.to_string());
    }
    for info in files.tensors() {
        hash.update(format!("{} {:?} {:?} {} {}\n", info.name, info.element, info.shape, info.file, info.offset));
        let file = &files.files()[info.file];
        for at in [info.offset, info.offset + info.bytes / 2] {
            let len = SAMPLE.min(info.offset + info.bytes - at);
            hash.update(&file.bytes()[at..at + len]);
            file.release(at, len);
        }
    }
    files.files().iter().for_each(|file| file.release(0, file.bytes().len()));
    hash.finalize().into()
}
