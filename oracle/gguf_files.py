"""GGUF files the way llama.cpp's converter writes them, from and to transformers models.

`write` turns a state dict of a llama, qwen2, qwen3 or gemma3_text model into a GGUF file: tensor names from the gguf package's own
map, metadata under llama.cpp's keys, llama's query and key rows permuted, gemma's norms stored with their +1, llama3's rope
scaling as the tensor `rope_freqs.weight`. `read_llama` goes back: it dequantises a llama GGUF to f32 and undoes the permutation.
`tokenizer` rebuilds a GPT-2 style tokenizer from a file's metadata. It refuses other families than these (mistral has no GGUF:
llama.cpp's llama graph has no window) and quantises with the gguf package, never with code of its own, so that it stays an oracle
for ours.
"""

import math

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

ARCH = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}


def permute(w, heads):
    """HF keeps a head's two rotary halves one after the other; llama.cpp's llama graph wants them interleaved."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def unpermute(w, heads):
    """The inverse of `permute`."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def llama3_rope_factors(config):
    """What llama.cpp divides each rotary frequency by: 1 for short wavelengths, `factor` for long ones, a blend between."""
    rope = config.rope_parameters
    dim, context = head_dim(config), rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    freqs = 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    factors = []
    for freq in freqs:
        wavelen = 2 * math.pi / freq
        if wavelen < context / high:
            factors.append(1)
        elif wavelen > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelen - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def write(path, name, config, state, file_type=gguf.LlamaFileType.ALL_F32, tensor_type=None, tokenizer=None):
    """Writes one GGUF file. `tensor_type(gguf_name, array)` picks a quantisation (default: all F32); `tokenizer(writer)` adds one."""
    arch = ARCH[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(file_type)
    if tensor_type:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_shape(writer, config)
    if tokenizer:
        tokenizer(writer)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for hf_name, w in state.items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        gguf_name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        w = to_gguf(config, hf_name, w.detach().to(torch.float32).numpy())
        kind = tensor_type(gguf_name, w) if tensor_type else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name, gguf.quants.quantize(w, kind), raw_dtype=kind)
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_rope_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer, config):
    """The model's numbers, under the keys llama.cpp reads them from."""
    gemma = config.model_type == "gemma3_text"
    rope = config.rope_parameters["full_attention"] if gemma else config.rope_parameters
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim(config))
    if gemma:
        # The window's pattern (every 6th layer global) and the local rope base (1e4) are not written: llama.cpp assumes them.
        writer.add_sliding_window(config.sliding_window)


def to_gguf(config, name, w):
    """One tensor's values as llama.cpp's converter would store them."""
    if config.model_type == "llama" and name.endswith("q_proj.weight"):
        return permute(w, config.num_attention_heads)
    if config.model_type == "llama" and name.endswith("k_proj.weight"):
        return permute(w, config.num_key_value_heads)
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        w = w + np.float32(1)
        if name.endswith("q_norm.weight"):
            # GGUF has no key for query_pre_attn_scalar: llama.cpp scales scores by 1/sqrt(head_dim). What is missing goes into the
            # query norm, exactly where the ratio is a power of four.
            w = w * np.float32(math.sqrt(config.head_dim / config.query_pre_attn_scalar))
    return w


def metadata(reader):
    return {key: field.contents() for key, field in reader.fields.items()}


def read_llama(path):
    """A llama GGUF as (LlamaForCausalLM in f32, metadata)."""
    reader = gguf.GGUFReader(path)
    meta = metadata(reader)
    if meta["general.architecture"] != "llama":
        raise SystemExit(f"{path}: architecture {meta['general.architecture']}, only llama is read here")
    tensors = {t.name: t for t in reader.tensors}
    if "rope_freqs.weight" in tensors:
        raise SystemExit(f"{path}: has rope_freqs.weight, which is not read here")
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    config = LlamaConfig(
        hidden_size=meta["llama.embedding_length"],
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=meta.get("llama.attention.key_length", meta["llama.embedding_length"] // heads),
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        max_position_embeddings=meta["llama.context_length"],
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        rope_parameters={"rope_type": "default", "rope_theta": meta["llama.rope.freq_base"]},
        tie_word_embeddings="output.weight" not in tensors,
        bos_token_id=meta.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=meta.get("tokenizer.ggml.eos_token_id"),
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    with torch.no_grad():
        for hf_name, parameter in model.named_parameters():
            tensor = tensors[names.get_name(hf_name, try_suffixes=(".weight",))]
            w = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if hf_name.endswith("q_proj.weight"):
                w = unpermute(w, heads)
            if hf_name.endswith("k_proj.weight"):
                w = unpermute(w, kv_heads)
            parameter.copy_(torch.from_numpy(np.array(w, dtype=np.float32)))
    return model, meta


def tokenizer(meta):
    """The GGUF's byte-level BPE: GPT-2's pattern, after cutting digits one by one where the file says smollm."""
    pre = meta["tokenizer.ggml.pre"]
    if meta["tokenizer.ggml.model"] != "gpt2" or pre not in ("smollm", "gpt-2"):
        raise SystemExit(f"tokenizer {meta['tokenizer.ggml.model']}/{pre}: only gpt2 with smollm or gpt-2 is read here")
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    out = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    out.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    out.decoder = decoders.ByteLevel()
    out.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, kinds) if kind == gguf.TokenType.CONTROL])
    return out
