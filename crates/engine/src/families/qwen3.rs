//! Qwen3: llama's blocks with a norm on every head of q and k.

use super::decoder::{RopeTables, pre_norm_block};
use super::source::Source;
use super::{Config, Family};
use crate::error::Result;
use crate::graph::{Builder, ValueId};

pub(super) fn config(source: &Source) -> Result<Config> {
    source.no_sliding_window()?;
    source.base(Family::Qwen3)
}

pub(super) fn block(b: &mut Builder, c: &Config, tables: &RopeTables, x: ValueId) -> ValueId {
    pre_norm_block(b, c, tables, x, Some(("self_attn.q_norm", "self_attn.k_norm")), false)
}
