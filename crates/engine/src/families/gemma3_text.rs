//! Gemma 3 (text): norms before and after each sub-layer, q/k norms, windowed layers with their own rotation, scaled embeddings.

use pocketune_kernels::activation::Act;

use super::decoder::{RopeTables, attention, feed_forward};
use super::source::Source;
use super::{Config, Family};
use crate::error::Result;
use crate::graph::{Builder, Role, ValueId};

/// GGUF files leave the base of windowed layers out.
pub(super) const LOCAL_THETA: f64 = 10_000.0;
/// One layer in six sees everything.
pub(super) const PATTERN: usize = 6;

pub(super) fn config(source: &Source) -> Result<Config> {
    let mut config = source.base(Family::Gemma3Text)?;
    config.act = Act::GeluTanh;
    config.embed_scale = (config.hidden as f32).sqrt();
    // GGUF converters add the one themselves.
    config.norm_plus = if source.is_gguf() { 0.0 } else { 1.0 };
    config.window = source.number("sliding_window", "attention.sliding_window")?;
    config.windowed = source.layer_types(config.layers, PATTERN)?;
    config.local_rope = Some(source.local_rope(LOCAL_THETA)?);
    if let Some(scalar) = source.float("query_pre_attn_scalar", "attention.query_pre_attn_scalar")? {
        config.attention_scale = 1.0 / scalar.sqrt();
    }
    source.refuse_set("attn_logit_softcapping")?;
    source.refuse_set("final_logit_softcapping")?;
    Ok(config)
}

pub(super) fn block(b: &mut Builder, c: &Config, tables: &RopeTables, x: ValueId, block: usize) -> ValueId {
    let norm = |b: &mut Builder, x, name, role| b.norm(x, name, role, c.hidden, c.norm_eps, c.norm_plus);
    let n = norm(b, x, "input_layernorm", Role::Normed);
    let qk_norm = Some(("self_attn.q_norm", "self_attn.k_norm"));
    let branch = attention(b, c, tables, n, qk_norm, c.windowed[block]);
    let branch = norm(b, branch, "post_attention_layernorm", Role::Branch);
    let x = b.add(x, branch, "middle", Role::Middle);
    let n = norm(b, x, "pre_feedforward_layernorm", Role::Normed);
    let branch = feed_forward(b, c, n);
    let branch = norm(b, branch, "post_feedforward_layernorm", Role::Branch);
    b.add(x, branch, "x", Role::BlockInput)
}
