//! RoBERTa: an encoder with learned positions, GELU, biases on every linear, and a head that is a small network of its own: before the
//! tied embedding, or before a few classes. Norms come after each sub-layer's sum. A block here begins with the norm that ends the one before (the
//! embedding's, for the first): so the residual stream between blocks is the sum that the norm's derivative reads, and its norm is
//! cheap to compute again. Records hold no padding, so the token that pads has the position of its place like any other.

use pocketune_kernels::activation::Act;
use pocketune_kernels::attention::Window;

use super::plain::{attention, feed_forward};
use super::source::Source;
use super::{Config, Family, Learned};
use crate::error::Result;
use crate::graph::{Added, Builder, Graph, LoraSpec, Naming, Role, ValueId};

/// What transformers takes where a configuration doesn't say.
const PAD_TOKEN: usize = 1;
const NORM_EPS: f32 = 1e-12;
const TYPES: usize = 2;

pub(super) fn config(source: &Source) -> Result<Config> {
    if source.flag("is_decoder", false) {
        return Err(source.fault("config.json: is_decoder is set, which is not supported for this family".into()));
    }
    if let Some(kind) = source.text("position_embedding_type").filter(|kind| kind != "absolute") {
        let fault = format!("config.json: position_embedding_type '{kind}' where only absolute is known");
        return Err(source.fault(fault));
    }
    let (hidden, heads) = (source.needed("hidden_size", "")?, source.needed("num_attention_heads", "")?);
    let rows = source.needed("max_position_embeddings", "")?;
    // Positions begin after the row of the token that pads.
    let offset = source.number("pad_token_id", "")?.unwrap_or(PAD_TOKEN).saturating_add(1);
    if offset >= rows {
        return Err(source.fault(format!("config.json: {rows} position embeddings, which begin at {offset}")));
    }
    let types = source.number("type_vocab_size", "")?.unwrap_or(TYPES);
    if types == 0 {
        return Err(source.fault("config.json: type_vocab_size 0, where every token has the first type".into()));
    }
    let head_dim = hidden / heads.max(1);
    let prefix = source.prefix_of(&["roberta.", ""], "embeddings.word_embeddings.weight");
    Ok(Config {
        ffn: source.needed("intermediate_size", "")?,
        vocab: source.rows_of(&format!("{prefix}embeddings.word_embeddings.weight"))?,
        norm_eps: source.float("layer_norm_eps", "")?.unwrap_or(NORM_EPS),
        tied: source.flag("tie_word_embeddings", true),
        classes: source.classes()?,
        act: source.act("hidden_act")?,
        learned: Some(Learned { rows, offset, types }),
        max_positions: Some(rows - offset),
        ..Config::plain(Family::Roberta, hidden, source.layers()?, heads, head_dim, prefix)
    })
}

pub(super) fn graph(c: &Config, learned: Learned, lora: Option<&LoraSpec>) -> Graph {
    let (encoder, embeddings) = (format!("{}encoder.", c.prefix), format!("{}embeddings", c.prefix));
    let mut b = Builder::new(&encoder, Naming::Roberta, c.layers, lora);
    let tokens = format!("{embeddings}.word_embeddings.weight");
    let table = b.table(&tokens, c.vocab, c.hidden);
    let positions = b.table(&format!("{embeddings}.position_embeddings.weight"), learned.rows, c.hidden);
    let types = b.table(&format!("{embeddings}.token_type_embeddings.weight"), learned.types, c.hidden);
    let added = Added { positions, offset: learned.offset, types: Some(types) };
    let mut x = b.embed(table, c.embed_scale, Some(added));
    let mut last_norm = format!("{embeddings}.LayerNorm");
    for block in 0..c.layers {
        b.enter(block);
        x = self::block(&mut b, c, x, &last_norm);
        last_norm = b.name("output.LayerNorm");
    }
    b.leave();
    let x = b.layer_norm(x, &last_norm, Role::Normed, c.norm_eps);
    if let Some(classes) = lora.and_then(|lora| lora.classes) {
        return b.classify(x, classes);
    }
    if let Some(classes) = c.classes {
        let x = b.dense(x, "classifier.dense", Role::Ffn);
        let x = b.activation(x, Act::Tanh);
        return b.cross_entropy_of(x, classes, "classifier.out_proj.weight", Some("classifier.out_proj.bias"));
    }
    let x = b.dense(x, "lm_head.dense", Role::Ffn);
    let x = b.activation(x, Act::Gelu);
    let x = b.layer_norm(x, "lm_head.layer_norm", Role::Normed, c.norm_eps);
    b.cross_entropy(x, if c.tied { &tokens } else { "lm_head.decoder.weight" }, Some("lm_head.bias"))
}

fn block(b: &mut Builder, c: &Config, x: ValueId, last_norm: &str) -> ValueId {
    let n = b.layer_norm(x, last_norm, Role::Normed, c.norm_eps);
    let branch = attention(b, c, n, Window::Whole);
    let middle = b.add(n, branch, "middle", Role::Middle);
    let module = b.name("attention.output.LayerNorm");
    let n = b.layer_norm(middle, &module, Role::Normed, c.norm_eps);
    let branch = feed_forward(b, c, n);
    b.add(n, branch, "x", Role::BlockInput)
}
