"""Golden numbers for every model family, from transformers and PEFT.

For each case it makes a tiny model with random weights and a random LoRA adapter, runs one padded batch of two records, and writes
under crates/engine/tests/golden/<case>/ the model folder, the adapter, and expected.safetensors: logits, loss, every adapter
gradient, ten AdamW steps, ten SGD steps, greedy tokens; beside it <case>.gguf with the same weights, where GGUF knows the family. An
encoder has masked tokens to predict instead of next ones, and no greedy tokens. It refuses to write a case whose
numbers could hide a fault: a vanishing gradient, a greedy choice too close to call, a window, a rope scaling or positions that change
nothing, or a GGUF that transformers reads differently. It downloads nothing and takes everything from one seed.
"""

import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers as tf
from peft import LoraConfig, VeraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file

import gguf_files

GOLDEN = Path(__file__).resolve().parents[1] / "crates/engine/tests/golden"
SEED = 20240611
LENGTHS = (20, 13)
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OPT_LINEARS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
ROBERTA_LINEARS = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]
NO_GGUF = ("mistral", "opt", "roberta", "qwen2_dora", "llama_ends", "gemma3_text_ends")
PAD, NO_LABEL = 1, -100
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def shape(hidden, ffn, layers, heads, kv, head_dim, vocab, **more):
    return dict(
        hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, head_dim=head_dim, vocab_size=vocab, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation="eager", **more,
    )  # fmt: skip


# case: (config class, model class, config arguments, LoRA rank)
CASES = {
    "llama": (tf.LlamaConfig, tf.LlamaForCausalLM,
        shape(64, 96, 2, 4, 2, 16, 128, tie_word_embeddings=False, rope_parameters=DEFAULT_ROPE), 4),
    "llama3": (tf.LlamaConfig, tf.LlamaForCausalLM,
        shape(40, 72, 2, 4, 2, 16, 96, tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters=LLAMA3_ROPE), 4),
    "mistral": (tf.MistralConfig, tf.MistralForCausalLM,
        shape(32, 56, 2, 4, 2, 8, 96, tie_word_embeddings=False, sliding_window=8, rope_parameters=DEFAULT_ROPE), 4),
    "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM,
        shape(48, 64, 2, 6, 2, None, 96, tie_word_embeddings=True,
              rope_parameters={"rope_type": "default", "rope_theta": 1e6}), 4),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM,
        shape(32, 56, 2, 4, 2, 32, 96, tie_word_embeddings=True,
              rope_parameters={"rope_type": "default", "rope_theta": 1e6}), 4),
    "gemma3_text": (tf.Gemma3TextConfig, tf.Gemma3ForCausalLM,
        shape(32, 48, 6, 2, 1, 16, 96, tie_word_embeddings=True, sliding_window=8, query_pre_attn_scalar=64,
              rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}), 2),
    "opt": (tf.OPTConfig, tf.OPTForCausalLM,
        dict(hidden_size=32, word_embed_proj_dim=32, ffn_dim=56, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None,
             attn_implementation="eager"), 4),
    "roberta": (tf.RobertaConfig, tf.RobertaForMaskedLM,
        dict(hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
             max_position_embeddings=66, type_vocab_size=2, layer_norm_eps=1e-5, bos_token_id=None, eos_token_id=None,
             pad_token_id=PAD, attn_implementation="eager"), 4),
}  # fmt: skip

# case: (the case whose family it has, what else the adapter is). The last has a vocabulary of more than one strip of the loss.
KINDS = {
    "qwen2_dora": ("qwen2", dict(use_dora=True, use_rslora=True, lora_alpha=3, rank_pattern={"v_proj": 2, "layers.1.mlp.up_proj": 8},
                                 alpha_pattern={"layers.0.mlp.down_proj": 4})),
    "llama_dora": ("llama", dict(use_dora=True)),
    "llama_ends": ("llama", dict(target_modules=["embed_tokens", "lm_head", "q_proj"])),
    "gemma3_text_ends": ("gemma3_text", dict(target_modules=["embed_tokens", "lm_head", "down_proj"])),
    "llama_vera": ("llama", "VeRA"),
}  # fmt: skip
CASES |= {case: CASES[family] for case, (family, _) in KINDS.items()}
config_class, model_class, arguments, rank = CASES["gemma3_text_ends"]
CASES["gemma3_text_ends"] = (config_class, model_class, arguments | dict(vocab_size=1100), rank)
# More outputs than the strip of 256 that VeRA is worked through in.
CASES["llama_vera"] = (tf.LlamaConfig, tf.LlamaForCausalLM,
    shape(32, 264, 2, 4, 2, 8, 96, tie_word_embeddings=True, rope_parameters=DEFAULT_ROPE), 12)  # fmt: skip
FAMILY = {case: KINDS[case][0] if case in KINDS else case for case in CASES}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for case in sys.argv[1:] or CASES:
        make(case)
    for f in GOLDEN.rglob("*.safetensors"):
        f.chmod(0o644)
    total = sum(f.stat().st_size for f in GOLDEN.rglob("*") if f.is_file())
    print(f"total {total / 1e6:.2f} MB")


def make(case):
    config_class, model_class, arguments, rank = CASES[case]
    arguments, family = dict(arguments), FAMILY[case]
    rng = torch.Generator().manual_seed(SEED + list(CASES).index(case))
    if arguments.get("head_dim", 0) is None:
        arguments.pop("head_dim")  # qwen2 has no such key: heads divide the hidden size
    config = config_class(**arguments)
    model = model_class(config).float().eval()
    randomise(model, rng)
    folder = GOLDEN / case
    shutil.rmtree(folder, ignore_errors=True)
    save_model(case, model, folder)
    records = [Record(torch.randint(0, config.vocab_size, (n,), generator=rng)) for n in LENGTHS]
    if case == "roberta":
        records = [masked(r.ids, config.vocab_size - 1, rng) for r in records]
    expected = {f"ids.{i}": r.ids for i, r in enumerate(records)}
    if case == "roberta":  # -1 reads as the engine's own sign for no label
        expected |= {f"labels.{i}": torch.where(r.labels == NO_LABEL, -1, r.labels) for i, r in enumerate(records)}
    with torch.no_grad():
        expected["logits_base.0"] = model(records[0].ids[None]).logits[0]
    check_it_bites(family, model, records[0].ids, expected["logits_base.0"])
    if case not in NO_GGUF:
        write_gguf(case, model, records[0].ids, expected["logits_base.0"])

    linears = {"opt": OPT_LINEARS, "roberta": ROBERTA_LINEARS}.get(case, LINEARS)
    task = None if case == "roberta" else "CAUSAL_LM"
    lora = dict(r=rank, lora_alpha=8, target_modules=linears, lora_dropout=0.0, bias="none", task_type=task)
    kind = KINDS.get(case, (None, {}))[1]
    if kind == "VeRA":
        model = get_peft_model(model, VeraConfig(r=rank, target_modules=linears, task_type=task))
    else:
        model = get_peft_model(model, LoraConfig(**lora | kind))
    with torch.no_grad():
        for name, p in adapter(model):
            noise = torch.randn(p.shape, generator=rng)
            if "magnitude" in name:
                p.mul_(1 + 0.2 * noise)
            elif "vera" in name:
                p.copy_(noise * 0.4)
            else:
                p.copy_(noise * (0.08 if family == "gemma3_text" else 0.15))
    save_adapter(model, folder / "adapter")
    expected |= numbers(case, model, records)
    save_file({k: v.detach().contiguous().clone() for k, v in expected.items()}, folder / "expected.safetensors")


class Record:
    """Tokens and what is to be predicted: the next token everywhere (transformers shifts the labels), or what a mask hides."""

    def __init__(self, ids, labels=None):
        self.ids, self.labels, self.shifts = ids, ids if labels is None else labels, labels is None

    def targets(self):
        return len(self.ids) - 1 if self.shifts else (self.labels != NO_LABEL).sum().item()


def masked(ids, mask, rng):
    """Every fourth token hidden, or replaced, or left as it is; no token is the one that pads, whose position is another."""
    ids = torch.where(ids == PAD, PAD + 1, ids)
    labels = torch.full_like(ids, NO_LABEL)
    places = torch.arange(1, len(ids), 4)
    labels[places] = ids[places]
    ids = ids.clone()
    ids[places[::2]] = mask
    ids[places[1]] = PAD + 2
    return Record(ids, labels)


def randomise(model, rng):
    """Weights large enough that gradients reach every layer; norms around 1, or around 0 where the family adds the 1 itself."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=rng)
            if name.endswith("bias"):
                p.copy_(noise * 0.3)
            elif "norm" in name.lower():
                p.copy_(noise * 0.2 + (0.0 if "Gemma" in type(model).__name__ else 1.0))
            elif "embed" in name or "lm_head" in name:
                p.copy_(noise * 0.3)
            else:
                p.copy_(noise * 0.15)


def save_model(case, model, folder):
    """The HF folder as transformers saves it (`llama`: in two shards), and the same config with the flat keys of transformers 4."""
    model.save_pretrained(folder, max_shard_size="200KB" if case == "llama" else "5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    shards = len(list(folder.glob("*.safetensors")))
    assert shards == (2 if case == "llama" else 1), f"{case}: {shards} shards"
    flat = flat_config(json.loads((folder / "config.json").read_text()))
    with tempfile.TemporaryDirectory() as there:
        (Path(there) / "config.json").write_text(json.dumps(flat))
        again = tf.AutoConfig.from_pretrained(there)
    same = getattr(again, "rope_parameters", None) == getattr(model.config, "rope_parameters", None)
    assert same, f"{case}: the flat config reads back differently"
    (folder / "config.v4.json").write_text(json.dumps(flat, indent=2) + "\n")


def save_adapter(model, folder):
    model.save_pretrained(folder)
    (folder / "README.md").unlink()  # PEFT's empty model card
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"].sort()  # PEFT writes a set, in any order
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def flat_config(config):
    """rope_parameters (transformers 5) as rope_theta, rope_scaling and rope_local_base_freq (transformers 4, most of the Hub)."""
    config = copy.deepcopy(config)
    config["transformers_version"] = "4.51.0"
    config["torch_dtype"] = config.pop("dtype")
    if "rope_parameters" not in config:
        return config
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_theta"] = rope["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["rope_scaling"] = None
        config["sliding_window_pattern"] = 6
        config.pop("layer_types")
        config.pop("_sliding_window_pattern")
    else:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    return config


def check_it_bites(case, model, ids, logits):
    """What sets a family apart must move its logits, or a port that forgot it would pass."""
    if case in ("opt", "roberta"):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for name, p in other.named_parameters():
                if "position" in name:
                    p.copy_(p.roll(1, 0))
            moved = (other(ids[None]).logits[0] - logits).abs().max().item()
            assert moved > 0.05, f"{case}: positions that are off by one move the logits by {moved} only"
            first = (model(ids[None, :5]).logits[0, 0] - logits[0]).abs().max().item()
        assert (first > 0.05) == (case == "roberta"), f"{case}: later tokens move the first logits by {first}"
        return
    without = {
        "llama3": {"rope_parameters": DEFAULT_ROPE},
        "mistral": {"sliding_window": None},
        "gemma3_text": {"sliding_window": 4096},
    }.get(case)
    if not without:
        return
    plain = copy.deepcopy(model.config)
    for key, value in without.items():
        setattr(plain, key, value)
    other = type(model)._from_config(plain, attn_implementation="eager").eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        moved = (other(ids[None]).logits[0] - logits).abs().max().item()
    assert moved > 0.05, f"{case}: {list(without)} moves the logits by {moved} only"


def write_gguf(case, model, ids, logits):
    """The GGUF twin, and what transformers' own GGUF reader makes of it."""
    path = GOLDEN / f"{case}.gguf"
    gguf_files.write(path, f"golden-{case}", model.config, model.state_dict())
    case = FAMILY[case]
    # transformers ignores key_length for qwen3 and reads no window for gemma3: there the config is ours, the tensors the file's.
    ours = {"config": model.config} if case in ("qwen3", "gemma3_text") else {}
    again = tf.AutoModelForCausalLM.from_pretrained(
        GOLDEN, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager", **ours
    ).eval()
    if case == "llama3":  # transformers does not read rope_freqs.weight; the factors are checked against its own frequencies
        theta = model.config.rope_parameters["rope_theta"]
        plain = 1.0 / theta ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16)
        factors = torch.from_numpy(gguf_files.llama3_rope_factors(model.config))
        torch.testing.assert_close(plain / factors, model.model.rotary_emb.inv_freq, rtol=1e-6, atol=0)
        again.model.rotary_emb.inv_freq.copy_(plain / factors)
    if case == "gemma3_text":  # llama.cpp's scale; the rest of query_pre_attn_scalar is in the file's query norm
        for layer in again.model.layers:
            layer.self_attn.scaling = model.config.head_dim**-0.5
    with torch.no_grad():
        off = (again(ids[None]).logits[0] - logits).abs().max().item()
    print(f"{case}: GGUF read by transformers, logits off by {off:.1e}")
    assert off < 2e-5, f"{case}: the GGUF twin is another model"


def adapter(model):
    def saved(name):
        return name.replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector")

    return [(saved(n), p) for n, p in model.named_parameters() if p.requires_grad]


def padded(records):
    """One right-padded batch: ids, mask, and labels with -100 on padding, over which transformers averages."""
    width = max(len(r.ids) for r in records)
    ids = torch.full((len(records), width), 0 if records[0].shifts else PAD, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, NO_LABEL)
    for row, r in enumerate(records):
        ids[row, : len(r.ids)], mask[row, : len(r.ids)], labels[row, : len(r.ids)] = r.ids, 1, r.labels
    return dict(input_ids=ids, attention_mask=mask, labels=labels)


def numbers(case, model, records):
    out = {}
    batch = padded(records)
    result = model(**batch)
    result.loss.backward()
    out["loss"] = result.loss
    for i, r in enumerate(records):
        out[f"logits.{i}"] = result.logits[i, : len(r.ids)]
        with torch.no_grad():
            alone = model(r.ids[None]).logits[0]
        torch.testing.assert_close(alone, out[f"logits.{i}"], rtol=1e-4, atol=1e-4)
    saved = get_peft_model_state_dict(model)
    norms = {}
    for name, p in adapter(model):
        assert name in saved
        out[f"grad.{name}"] = p.grad.clone()
        norms[name] = p.grad.norm().item()
    smallest = min(norms, key=norms.get)
    assert norms[smallest] > 1e-6, f"{case}: gradient of {smallest} vanishes"
    print(f"{case}: loss {result.loss.item():.6f}, smallest gradient norm {norms[smallest]:.3e} ({smallest})")
    if records[0].shifts:
        out["greedy"] = greedy(case, model, records[0].ids[:8], 8)
    out |= steps(case, model, records, "adamw", lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.01))
    out |= steps(case, model, records, "sgd", lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01))
    return out


@torch.no_grad()
def greedy(case, model, ids, count):
    tokens = ids.clone()
    for _ in range(count):
        best = model(tokens[None]).logits[0, -1].topk(2)
        margin = (best.values[0] - best.values[1]).item()
        assert margin > 1e-3, f"{case}: greedy choice within {margin}"
        tokens = torch.cat([tokens, best.indices[:1]])
    return tokens[len(ids) :]


def steps(case, model, records, name, optimizer):
    """Ten updates on the same batch. A second run sums the records in another order: what differs is rounding, and is printed."""
    losses, final = ten(model, optimizer, lambda m: m(**padded(records)).loss)
    count = sum(r.targets() for r in records)
    other_losses, other = ten(model, optimizer, lambda m: sum(
        m(input_ids=r.ids[None], labels=r.labels[None]).loss * r.targets() for r in reversed(records)) / count)
    drift = max((final[n] - other[n]).abs().max().item() for n in final)
    print(f"{case}: {name} {losses[0]:.4f} -> {losses[9]:.4f}; rounding alone moves a loss by "
          f"{(losses - other_losses).abs().max():.1e}, a parameter by {drift:.1e}")
    return {f"{name}.losses": losses} | {f"{name}.final.{n}": p for n, p in final.items()}


def ten(model, optimizer, loss_of):
    model = copy.deepcopy(model)
    step = optimizer([p for _, p in adapter(model)])
    losses = []
    for _ in range(10):
        step.zero_grad()
        loss = loss_of(model)
        loss.backward()
        losses.append(loss.item())
        step.step()
    return torch.tensor(losses), {n: p.detach() for n, p in adapter(model)}


if __name__ == "__main__":
    main()
