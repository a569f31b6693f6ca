//! The file of a run's updates, as it is and once more with the checksum that it should have, so that damage behind the checksum is seen too.

use std::path::Path;

use pocketune::store::write_updates;
use pocketune::train::Updates;

use super::{Target, accepted, as_it_is_or_mended};
use crate::seeds::Seed;

pub const TARGET: Target = Target {
    name: "updates",
    run,
    seeds,
    words: &[
        b"pocketune update",
        b"\"format\":",
        b"\"method\":",
        b"\"seed\":",
        b"\"model\":",
        b"\"start\":",
        b"\"adapter\":",
        b"\"fzoo\"",
        b"null",
        b"{}",
        b"[]",
        b"-1",
        b"1e999",
        b"18446744073709551616",
        b"\xff",
        b"\\u0000",
        b"\\\"",
        b"\"",
    ],
};

fn run(bytes: &[u8]) -> bool {
    as_it_is_or_mended(bytes, |file| {
        let updates = accepted(Updates::of(Path::new("pocketune.updates"), &file));
        updates.is_some_and(|updates| updates.count() <= file.len())
    })
}

/// The adapter of a run of the built-in model, as PEFT describes it.
const ADAPTER: &str = r#"{"peft_type":"LORA","r":8,"lora_alpha":16,"target_modules":["q_proj","v_proj"],"layers_to_transform":null,"rank_pattern":{},"alpha_pattern":{},"use_rslora":false,"use_dora":false,"lora_dropout":0.0,"bias":"none","base_model_name_or_path":"m","task_type":"CAUSAL_LM"}"#;

fn seeds() -> Vec<Seed> {
    let file = |method: &str, start: &str, numbers: &[f32]| {
        let adapter = ADAPTER.replace('"', "\\\"");
        let header = format!(
            r#"{{"format":1,"method":"{method}","seed":0,"model":"ab12","start":{start},"adapter":"{adapter}"}}"#
        );
        let mut bytes = Vec::new();
        // Into memory; nothing can fail.
        let _ = write_updates(&mut bytes, header.as_bytes(), numbers);
        Seed::common(bytes)
    };
    vec![file("mezo", "null", &[0.5, 1.0, -0.25, 1.0]), file("fzoo", "\"cd34\"", &[1.0; 18])]
}
