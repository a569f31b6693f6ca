//! Hugging Face tensor names and their GGUF counterparts.

use super::Family;

/// The GGUF name of the tensor that Hugging Face calls `name`. Families without a form in GGUF keep their names, in the file of a run that trains all of them.
pub fn gguf_name(family: Family, name: &str) -> Option<String> {
    if family.architecture().is_none() {
        return Some(name.into());
    }
    let name = name.strip_prefix("model.").unwrap_or(name);
    let (stem, ending) = name.rsplit_once('.')?;
    let gguf = match stem {
        "embed_tokens" => "token_embd".into(),
        "norm" => "output_norm".into(),
        "lm_head" => "output".into(),
        _ => {
            let (block, inside) = stem.strip_prefix("layers.")?.split_once('.')?;
            format!("blk.{block}.{}", inside_block(family, inside)?)
        }
    };
    Some(format!("{gguf}.{ending}"))
}

fn inside_block(family: Family, name: &str) -> Option<&'static str> {
    let four_norms = family == Family::Gemma3Text;
    Some(match name {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" if four_norms => "post_attention_norm",
        "post_attention_layernorm" => "ffn_norm",
        "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    })
}
