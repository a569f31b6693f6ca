//! What the families of layer norms share: attention without rotations, a feed-forward without a gate, biases on every linear.

use pocketune_kernels::attention::{Heads, Window};

use super::Config;
use crate::graph::{Builder, Projection, Role, Target, ValueId};

/// Attention from its input to the output projection.
pub(super) fn attention(b: &mut Builder, c: &Config, x: ValueId, window: Window) -> ValueId {
    let width = c.heads * c.head_dim;
    let projection = |target, rows, role| {
        let bias = if target == Target::O { c.o_bias } else { c.qkv_bias };
        Projection { target, rows, bias, role, permuted: None }
    };
    let [q, k, v] =
        [Target::Q, Target::K, Target::V].map(|target| b.linear(x, projection(target, width, Role::Attended)));
    let heads = Heads { queries: c.heads, kv: c.kv_heads, d: c.head_dim, scale: c.attention_scale, window };
    let out = b.attention(q, k, v, heads);
    b.linear(out, projection(Target::O, c.hidden, Role::Branch))
}

/// `down(act(up(x)))`.
pub(super) fn feed_forward(b: &mut Builder, c: &Config, x: ValueId) -> ValueId {
    let projection = |target, rows, role| Projection { target, rows, bias: c.mlp_bias, role, permuted: None };
    let up = b.linear(x, projection(Target::Up, c.ffn, Role::Ffn));
    let activated = b.activation(up, c.act);
    b.linear(activated, projection(Target::Down, c.hidden, Role::Branch))
}
