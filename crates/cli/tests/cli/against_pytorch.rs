//! The whole program against PyTorch, transformers and PEFT: a model file, a data file and an adapter go in, and the losses of ten
//! updates, the adapter that comes out, the measured loss and the generated tokens are those that PyTorch found.

use std::path::PathBuf;

use crate::adapters::{self, Tensors, distance};
use crate::measuring::measured;
use crate::models::{FOLDERS, GGUFS, Golden};
use crate::place::Place;
use crate::reports::losses;

/// Runs `check` on every tiny model, in both formats.
fn on_every_model(check: impl Fn(&Place, &Golden, PathBuf)) {
    for golden in FOLDERS.map(Golden::new) {
        let place = Place::new();
        check(&place, &golden, golden.folder(&place));
    }
    for golden in GGUFS.map(Golden::new) {
        let place = Place::new();
        check(&place, &golden, golden.gguf(&place));
    }
}

/// Ten updates with the rate and the decay of `oracle/families.py`.
fn ten_updates_follow_pytorch(optimizer: &str, rate: &str) {
    on_every_model(|place, golden, model| {
        let data = place.texts("data.jsonl", &golden.records());
        let said = place
            .pocketune("train --iters 10 --batch-size 2 --no-shuffle --steps-per-report 1 --log-format jsonl")
            .with("--precision", "f32")
            .with("--optimizer", optimizer)
            .with("--learning-rate", rate)
            .with("--weight-decay", "0.01")
            .with("--init-adapter", golden.adapter())
            .model(&model)
            .data(data)
            .into("out")
            .succeeds();
        let expected = golden.expected();
        let want = &expected[&format!("{optimizer}.losses")];
        let got = losses(&said.stdout);
        assert_eq!(got.len(), want.len());
        for (iter, (got, &want)) in (1..).zip(got.iter().zip(want)) {
            let want = f64::from(want);
            assert!((got - want).abs() < 1e-4 * want, "{}, update {iter}: {got}, not {want}", model.display());
        }
        let prefix = format!("{optimizer}.final.");
        let last: Tensors = expected
            .into_iter()
            .filter_map(|(name, values)| Some((name.strip_prefix(&prefix)?.to_string(), values)))
            .collect();
        let off = distance(&adapters::tensors(&place.path("out")), &last);
        assert!(off < 1e-4, "{}: the adapter is off by {off:e}", model.display());
    });
}

#[test]
fn ten_adamw_updates_give_pytorchs_losses_and_adapter() {
    ten_updates_follow_pytorch("adamw", "1e-2");
}

#[test]
fn ten_sgd_updates_give_pytorchs_losses_and_adapter() {
    ten_updates_follow_pytorch("sgd", "0.1");
}

#[test]
fn the_loss_that_eval_measures_is_pytorchs() {
    on_every_model(|place, golden, model| {
        let data = place.texts("data.jsonl", &golden.records());
        let eval = || place.pocketune("eval --log-format jsonl --precision f32").model(&model);
        let expected = golden.expected();
        let loss = measured(eval().data(&data).with("--adapter", golden.adapter()))["loss"].as_f64().unwrap();
        let want = f64::from(expected["loss"][0]);
        assert!((loss - want).abs() < 1e-4 * want, "{}: {loss}, not {want}", model.display());

        // Without the adapter, of the first record alone: from the logits that PyTorch found for it.
        let [first, _] = golden.records();
        let data = place.texts("first.jsonl", &[&first]);
        let found = measured(eval().data(data));
        let (want, hits) = loss_and_hits(&expected["logits_base.0"], first.as_bytes());
        let loss = found["loss"].as_f64().unwrap();
        assert!((loss - want).abs() < 1e-4 * want, "{}: {loss}, not {want}", model.display());
        let targets = first.len() - 1;
        assert_eq!(found["tokens"], targets);
        assert!((found["accuracy"].as_f64().unwrap() - hits as f64 / targets as f64).abs() < 1e-9);
    });
}

/// The mean loss of every token but the first and how many were the likeliest, from the logits of all positions.
fn loss_and_hits(logits: &[f32], ids: &[u8]) -> (f64, usize) {
    let (mut loss, mut hits) = (0.0, 0);
    for (row, &next) in logits.chunks_exact(logits.len() / ids.len()).zip(&ids[1..]) {
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        loss += sum.ln() - f64::from(row[usize::from(next)]);
        hits += usize::from(row.iter().all(|&x| x <= row[usize::from(next)]));
    }
    (loss / (ids.len() - 1) as f64, hits)
}

#[test]
fn greedy_generation_gives_pytorchs_tokens() {
    on_every_model(|place, golden, model| {
        let said = place
            .pocketune("generate --max-tokens 8 --precision f32")
            .model(&model)
            .with("--adapter", golden.adapter())
            .with("--prompt", &golden.records()[0][..8])
            .succeeds();
        assert_eq!(said.stdout, format!("{}\n", golden.text("greedy")), "{}", model.display());
    });
}
