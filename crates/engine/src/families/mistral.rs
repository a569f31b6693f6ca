//! Mistral: llama's blocks, with a sliding window on every layer where the configuration has one.

use super::decoder::{RopeTables, pre_norm_block};
use super::source::Source;
use super::{Config, Family};
use crate::error::Result;
use crate::graph::{Builder, ValueId};

pub(super) fn config(source: &Source) -> Result<Config> {
    let mut config = source.base(Family::Mistral)?;
    config.window = source.number("sliding_window", "attention.sliding_window")?;
    config.windowed = vec![config.window.is_some(); config.layers];
    Ok(config)
}

pub(super) fn block(b: &mut Builder, c: &Config, tables: &RopeTables, x: ValueId) -> ValueId {
    pre_norm_block(b, c, tables, x, None, c.window.is_some())
}
