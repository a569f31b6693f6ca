//! What is compared: shapes and lengths, and the numbers of a shape as Hugging Face names them.

use pocketune::families::{Config, Family, shape};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};

/// Shapes that are compared unless others are asked for.
const SHAPES: [&str; 3] = ["smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b"];
/// Tokens of a record, of a shape that is named without.
const LENGTHS: [usize; 3] = [256, 512, 1024];

/// One shape at one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The shape's name.
    pub shape: String,
    /// Tokens of the one record of a step.
    pub seq: usize,
}

/// The rows called by `names`, `SHAPE` or `SHAPE@SEQ`; all of them where there is no name.
///
/// # Errors
/// When a shape is unknown or a length is none.
pub fn select(names: &[String]) -> Result<Vec<Row>> {
    if names.is_empty() {
        return select(&SHAPES.map(String::from));
    }
    let mut rows = Vec::new();
    for name in names {
        let (shape_name, seq) = name.split_once('@').map_or((name.as_str(), None), |(shape, seq)| (shape, Some(seq)));
        numbers(&shape(shape_name)?)?;
        let row = |seq| Row { shape: shape_name.into(), seq };
        match seq.map(str::parse::<usize>) {
            None => rows.extend(LENGTHS.map(row)),
            Some(Ok(seq)) if (2..=1 << 20).contains(&seq) => rows.push(row(seq)),
            Some(_) => return Err(Failure::new(format!("--rows {name}: a length is a number from 2 to 1048576"))),
        }
    }
    Ok(rows)
}

/// A configuration as transformers reads it. Families whose layers differ from each other are refused.
///
/// # Errors
/// When the family has no plain equivalent there.
pub fn numbers(config: &Config) -> Result<Value> {
    if config.family == Family::Gemma3Text {
        return Err(Failure::new("--rows: gemma3 is not compared; its layers take turns with a window"));
    }
    let Some(rope) = &config.rope else {
        let family = config.family.model_type();
        return Err(Failure::new(format!("--rows: {family} is not compared; the others' models have rotations")));
    };
    Ok(json!({
        "model_type": config.family.model_type(),
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "tie_word_embeddings": config.tied,
        "rms_norm_eps": f64::from(config.norm_eps),
        "rope_parameters": { "rope_type": "default", "rope_theta": rope.theta },
        "max_position_embeddings": config.max_positions.unwrap_or(1 << 15),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(names: &[&str]) -> Result<Vec<(String, usize)>> {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        select(&names).map(|rows| rows.into_iter().map(|row| (row.shape, row.seq)).collect())
    }

    #[test]
    fn a_shape_alone_means_every_length() {
        assert_eq!(selected(&[]).unwrap().len(), 9);
        let rows = selected(&["qwen2.5-0.5b", "smollm2-135m@64"]).unwrap();
        let lengths: Vec<usize> = rows.iter().map(|row| row.1).collect();
        assert_eq!(lengths, [256, 512, 1024, 64]);
        assert_eq!(rows[3].0, "smollm2-135m");
    }

    #[test]
    fn what_can_not_be_compared_is_refused_by_name() {
        for (name, words) in [("nothing@256", "nothing"), ("smollm2-135m@x", "length"), ("gemma3-1b", "gemma3")] {
            let fault = selected(&[name]).unwrap_err().to_string();
            assert!(fault.contains(words), "{fault}");
        }
    }
}
