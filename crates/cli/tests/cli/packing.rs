//! `--pack`: a batch is filled with records, and what they teach does not change.

use crate::adapters;
use crate::built_in::number;
use crate::models::{Golden, demo, demo_data};
use crate::place::Place;
use crate::reports::reports;

#[test]
fn packed_records_give_the_gradients_of_the_batch_to_the_bit() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    // From the longest to the shortest, as packing puts them.
    let texts = ["abcdefghijkl", "mnopqrstuv", "wxyzabcd", "efghij"];
    let data = place.texts("data.jsonl", &texts);
    let train = |words: &str, out: &str| {
        let run = place.pocketune("train --iters 3 --no-shuffle").words(words).model(&model).data(&data);
        let said = run.into(out).succeeds().stderr;
        (adapters::bytes(&place.path(out)), said)
    };
    let (batch, _) = train("--batch-size 4", "batch");
    let (packed, said) = train("--batch-size 1 --max-seq-length 36 --pack", "packed");
    assert!(said.contains("Data: 1 batches an epoch, 100.0 % of their room filled"), "{said}");
    assert!(packed == batch);
    let (rows, said) = train("--batch-size 2 --max-seq-length 18 --pack", "rows");
    assert!(said.contains("Data: 1 batches an epoch"), "{said}");
    assert!(rows == batch);
    let (other, said) = train("--batch-size 1 --max-seq-length 18 --pack", "other");
    assert!(said.contains("Data: 2 batches an epoch, 100.0 % of their room filled"), "{said}");
    assert!(other != batch);
}

#[test]
fn packing_fills_batches_inside_the_plan() {
    let place = Place::new();
    let said = place
        .pocketune("train --iters 6 --batch-size 1 --max-seq-length 256 --pack --steps-per-report 1 --log-format jsonl")
        .model(demo())
        .data(demo_data().join("train.jsonl"))
        .into("adapter")
        .succeeds();
    assert!(number(&said.stderr, "batches an epoch, ") > 90.0, "{}", said.stderr);
    let tokens: Vec<u64> =
        reports(&said.stdout).iter().map(|report| report["trained_tokens"].as_u64().unwrap()).collect();
    assert!(tokens[5] > 5 * 200 && tokens[5] <= 6 * 256, "{tokens:?}");
    for report in reports(&said.stdout) {
        assert!(report["planned_peak_bytes"].as_u64() >= report["peak_rss_bytes"].as_u64(), "{report}");
    }
}
