//! Qwen2 and Qwen2.5: llama's blocks with biases on q, k and v.

use super::decoder::{RopeTables, pre_norm_block};
use super::source::Source;
use super::{Config, Family};
use crate::error::Result;
use crate::graph::{Builder, ValueId};

pub(super) fn config(source: &Source) -> Result<Config> {
    source.no_sliding_window()?;
    let mut config = source.base(Family::Qwen2)?;
    config.qkv_bias = true;
    Ok(config)
}

pub(super) fn block(b: &mut Builder, c: &Config, tables: &RopeTables, x: ValueId) -> ValueId {
    pre_norm_block(b, c, tables, x, None, false)
}
