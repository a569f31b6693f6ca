//! One model as a Hugging Face folder and as a GGUF file, whose query and key rows lie in another order: the same data must give the
//! same adapter, in Hugging Face's order.

use crate::adapters::{self, distance};
use crate::measuring::measured;
use crate::models::{GGUFS, Golden};
use crate::place::Place;

#[test]
fn a_folder_and_a_gguf_of_one_model_train_to_one_adapter() {
    for golden in GGUFS.map(Golden::new) {
        let place = Place::new();
        let (folder, gguf) = (golden.folder(&place), golden.gguf(&place));
        let data = place.texts("data.jsonl", &["THE SAME DATA", "FOR BOTH OF THEM, 1 2 3", "AND ONCE MORE!"]);
        let train = |model, out| {
            let run = place.pocketune("train --iters 6 --batch-size 2 --precision f32 --learning-rate 1e-2");
            run.model(model).data(&data).into(out).succeeds();
            adapters::tensors(&place.path(out))
        };
        let (from_folder, from_gguf) = (train(&folder, "a"), train(&gguf, "b"));
        let off = distance(&from_gguf, &from_folder);
        assert!(off < 1e-4, "{}: off by {off:e}", golden.name);
        // Each in the other's place: an adapter belongs to the model, not to its file.
        let loss = |model, adapter| {
            let run = place.pocketune("eval --log-format jsonl --precision f32").model(model).data(&data);
            measured(run.with("--adapter", place.path(adapter)))["loss"].as_f64().unwrap()
        };
        let (here, there) = (loss(&folder, "b"), loss(&gguf, "a"));
        assert!((here - there).abs() < 1e-4 * here, "{}: {here} and {there}", golden.name);
    }
}
