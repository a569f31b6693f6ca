//! Llama 2 and 3.x, TinyLlama, SmolLM2: pre-norm blocks, grouped heads, llama3 rope scaling.

use super::decoder::{RopeTables, pre_norm_block};
use super::source::Source;
use super::{Config, Family};
use crate::error::Result;
use crate::graph::{Builder, ValueId};

pub(super) fn config(source: &Source) -> Result<Config> {
    source.base(Family::Llama)
}

pub(super) fn block(b: &mut Builder, c: &Config, tables: &RopeTables, x: ValueId) -> ValueId {
    pre_norm_block(b, c, tables, x, None, false)
}
