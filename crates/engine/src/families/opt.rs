//! OPT: a decoder with learned positions, layer norms before each sub-layer, ReLU, and biases on every linear. Embeddings that are
//! narrower than the model, norms after the sub-layers (both OPT-350M's alone) and norms without weights are refused.

use pocketune_kernels::attention::Window;

use super::plain::{attention, feed_forward};
use super::source::Source;
use super::{Config, Family, Learned};
use crate::error::Result;
use crate::graph::{Added, Builder, Graph, LoraSpec, Naming, Role, ValueId};

/// The first rows of the position table belong to no position.
pub(super) const OFFSET: usize = 2;
/// PyTorch's default, which no configuration states.
pub(super) const NORM_EPS: f32 = 1e-5;

pub(super) fn config(source: &Source) -> Result<Config> {
    let hidden = source.needed("hidden_size", "")?;
    if let Some(narrow) = source.number("word_embed_proj_dim", "")?.filter(|&dim| dim != hidden) {
        let fault = format!("config.json: word_embed_proj_dim {narrow} where hidden_size is {hidden}");
        return Err(source.fault(format!("{fault}: projected embeddings are not supported")));
    }
    for (key, wanted) in
        [("do_layer_norm_before", true), ("layer_norm_elementwise_affine", true), ("_remove_final_layer_norm", false)]
    {
        if source.flag(key, wanted) != wanted {
            return Err(source.fault(format!("config.json: {key} is {}, which is not supported", !wanted)));
        }
    }
    let heads = source.needed("num_attention_heads", "")?;
    let prefix = source.prefix_of(&["model.decoder.", "decoder."], "embed_tokens.weight");
    let positions = source.needed("max_position_embeddings", "")?;
    let bias = source.flag("enable_bias", true);
    let head_dim = hidden / heads.max(1);
    Ok(Config {
        ffn: source.needed("ffn_dim", "")?,
        vocab: source.rows_of(&format!("{prefix}embed_tokens.weight"))?,
        norm_eps: NORM_EPS,
        tied: source.flag("tie_word_embeddings", true),
        act: source.act("activation_function")?,
        learned: Some(Learned { rows: positions.saturating_add(OFFSET), offset: OFFSET, types: 0 }),
        qkv_bias: bias,
        o_bias: bias,
        mlp_bias: bias,
        max_positions: Some(positions),
        ..Config::plain(Family::Opt, hidden, source.layers()?, heads, head_dim, prefix)
    })
}

pub(super) fn graph(c: &Config, learned: Learned, lora: Option<&LoraSpec>) -> Graph {
    let mut b = Builder::new(&c.prefix, Naming::Opt, c.layers, lora);
    let tokens = b.name("embed_tokens.weight");
    let table = b.table(&tokens, c.vocab, c.hidden);
    let positions = b.name("embed_positions.weight");
    let positions = b.table(&positions, learned.rows, c.hidden);
    let mut x = b.embed(table, c.embed_scale, Some(Added { positions, offset: learned.offset, types: None }));
    for block in 0..c.layers {
        b.enter(block);
        x = self::block(&mut b, c, x);
    }
    b.leave();
    let x = norm(&mut b, c, x, "final_layer_norm");
    b.cross_entropy(x, if c.tied { &tokens } else { "lm_head.weight" }, None)
}

fn block(b: &mut Builder, c: &Config, x: ValueId) -> ValueId {
    let n = norm(b, c, x, "self_attn_layer_norm");
    let branch = attention(b, c, n, Window::Past);
    let x = b.add(x, branch, "middle", Role::Middle);
    let n = norm(b, c, x, "final_layer_norm");
    let branch = feed_forward(b, c, n);
    b.add(x, branch, "x", Role::BlockInput)
}

fn norm(b: &mut Builder, c: &Config, x: ValueId, name: &str) -> ValueId {
    let module = b.name(name);
    b.layer_norm(x, &module, Role::Normed, c.norm_eps)
}
