//! What the families share: the projections and rotations of an attention, and the gated feed-forward.

use pocketune_kernels::attention::{Heads, Window};
use pocketune_kernels::rope::Pairs;

use super::Config;
use crate::graph::{Builder, Projection, Role, RopeId, Target, ValueId};

/// The rotations of a model: one for layers that see everything, one for windowed layers.
pub(super) struct RopeTables {
    global: RopeId,
    local: RopeId,
}

impl RopeTables {
    pub(super) fn new(b: &mut Builder, config: &Config) -> Self {
        let global = config.rope.as_ref().map_or(Vec::new(), |rope| rope.frequencies(config.head_dim));
        let global = b.rope_table(global);
        let local = config.local_rope.as_ref().map_or(global, |rope| b.rope_table(rope.frequencies(config.head_dim)));
        Self { global, local }
    }
}

/// Names of the norms on queries and keys.
pub(super) type QkNorm = Option<(&'static str, &'static str)>;

/// Attention from its normed input to the output projection.
pub(super) fn attention(
    b: &mut Builder,
    c: &Config,
    tables: &RopeTables,
    x: ValueId,
    qk_norm: QkNorm,
    windowed: bool,
) -> ValueId {
    let permuted = (c.pairs == Pairs::Interleaved).then_some(c.head_dim);
    let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let projection = |target, rows, role, permuted| {
        let bias = if target == Target::O { c.o_bias } else { c.qkv_bias };
        Projection { target, rows, bias, role, permuted }
    };
    let mut q = b.linear(x, projection(Target::Q, q_width, Role::Projected, permuted));
    let mut k = b.linear(x, projection(Target::K, kv_width, Role::Projected, permuted));
    let v = b.linear(x, projection(Target::V, kv_width, Role::Attended, None));
    if let Some((q_norm, k_norm)) = qk_norm {
        q = b.norm(q, q_norm, Role::Attended, c.head_dim, c.norm_eps, c.norm_plus);
        k = b.norm(k, k_norm, Role::Attended, c.head_dim, c.norm_eps, c.norm_plus);
    }
    let table = if windowed { tables.local } else { tables.global };
    let q = b.rope(q, table, c.head_dim, c.pairs);
    let k = b.rope(k, table, c.head_dim, c.pairs);
    let heads = Heads {
        queries: c.heads,
        kv: c.kv_heads,
        d: c.head_dim,
        scale: c.attention_scale,
        window: Window::causal(c.window.filter(|_| windowed)),
    };
    let out = b.attention(q, k, v, heads);
    b.linear(out, projection(Target::O, c.hidden, Role::Branch, None))
}

/// `down(act(gate(x)) up(x))`.
pub(super) fn feed_forward(b: &mut Builder, c: &Config, x: ValueId) -> ValueId {
    let projection = |target, rows, role| Projection { target, rows, bias: c.mlp_bias, role, permuted: None };
    let gate = b.linear(x, projection(Target::Gate, c.ffn, Role::Ffn));
    let up = b.linear(x, projection(Target::Up, c.ffn, Role::Ffn));
    let activated = b.gated(gate, up, c.act);
    b.linear(activated, projection(Target::Down, c.hidden, Role::Branch))
}

/// The pre-norm block of llama and its relatives: `x + attention(norm(x))`, then `x + feed_forward(norm(x))`.
pub(super) fn pre_norm_block(
    b: &mut Builder,
    c: &Config,
    tables: &RopeTables,
    x: ValueId,
    qk_norm: QkNorm,
    windowed: bool,
) -> ValueId {
    let n = b.norm(x, "input_layernorm", Role::Normed, c.hidden, c.norm_eps, c.norm_plus);
    let branch = attention(b, c, tables, n, qk_norm, windowed);
    let x = b.add(x, branch, "middle", Role::Middle);
    let n = b.norm(x, "post_attention_layernorm", Role::Normed, c.hidden, c.norm_eps, c.norm_plus);
    let branch = feed_forward(b, c, n);
    b.add(x, branch, "x", Role::BlockInput)
}
