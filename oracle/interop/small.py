"""Adapters of every kind through the packages that other tools read and write them with: safetensors, gguf, tokenizers. No torch.

    small.py make FOLDER            writes FOLDER/peft with safetensors, FOLDER/theirs.gguf with gguf: the same random adapter of the demo model
    small.py check FOLDER           what pocketune made of these: FOLDER/{mlx,back}, FOLDER/ours.gguf hold the same numbers, in each one's order
    small.py tokens MODEL < lines   the token numbers of each line's text, by the tokenizers package on the GGUF's own vocabulary

It refuses to be lenient: factors are compared to the bit.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

RANK, ALPHA, HEAD = 4, 6, 32
# Of the demo model: outputs, inputs, and GGUF's name.
LINEARS = {
    "self_attn.q_proj": (192, 192, "attn_q"),
    "self_attn.k_proj": (64, 192, "attn_k"),
    "mlp.down_proj": (192, 512, "ffn_down"),
}


def make(folder):
    draw = np.random.default_rng(7)
    peft, theirs = {}, {}
    for layer in range(4):
        for path, (rows, cols, name) in LINEARS.items():
            a = draw.standard_normal((RANK, cols), dtype=np.float32)
            b = draw.standard_normal((rows, RANK), dtype=np.float32)
            prefix = f"base_model.model.model.layers.{layer}.{path}"
            peft[f"{prefix}.lora_A.weight"], peft[f"{prefix}.lora_B.weight"] = a, b
            theirs[f"blk.{layer}.{name}.weight.lora_a"] = a
            theirs[f"blk.{layer}.{name}.weight.lora_b"] = turned(b) if name in ("attn_q", "attn_k") else b
    (folder / "peft").mkdir(parents=True, exist_ok=True)
    save_file(peft, folder / "peft/adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    config["target_modules"] = [path.split(".")[-1] for path in LINEARS]
    (folder / "peft/adapter_config.json").write_text(json.dumps(config))
    writer = gguf.GGUFWriter(folder / "theirs.gguf", "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(ALPHA))
    for name, values in theirs.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def turned(b):
    """Rows of queries and keys as llama.cpp's converter orders them."""
    return b.reshape(b.shape[0] // HEAD, 2, HEAD // 2, RANK).swapaxes(1, 2).reshape(b.shape)


def check(folder):
    peft, back = (load_file(folder / name / "adapter_model.safetensors") for name in ("peft", "back"))
    same("the way back from gguf", peft, back)
    mlx = load_file(folder / "mlx/adapters.safetensors")
    names = {"lora_A.weight": "lora_a", "lora_B.weight": "lora_b"}
    want = {}
    for name, values in peft.items():
        path, factor = name.removeprefix("base_model.model.").split(".lora_")
        want[f"{path}.{names['lora_' + factor]}"] = values.T
    same("mlx", want, mlx)
    parameters = json.loads((folder / "mlx/adapter_config.json").read_text())["lora_parameters"]
    assert (parameters["rank"], parameters["scale"]) == (RANK, ALPHA / RANK), parameters
    ours, theirs = (gguf.GGUFReader(folder / name) for name in ("ours.gguf", "theirs.gguf"))
    same("gguf", *({tensor.name: tensor.data for tensor in reader.tensors} for reader in (theirs, ours)))
    for key in ("general.architecture", "general.type", "adapter.type", "adapter.lora.alpha"):
        found = [reader.fields[key].contents() for reader in (ours, theirs)]
        assert found[0] == found[1], (key, found)
    print(f"{len(peft)} factors agree to the bit in PEFT's, MLX's and llama.cpp's files")


def same(what, want, got):
    assert want.keys() == got.keys(), (what, want.keys() ^ got.keys())
    for name in want:
        assert np.array_equal(want[name], got[name]), (what, name)


def tokens(model):
    fields = gguf.GGUFReader(model).fields
    words, kinds = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type"))
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    control = [AddedToken(word, special=True) for word, kind in zip(words, kinds) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens(control)
    for line in sys.stdin:
        ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
        print(json.dumps(ids, separators=(",", ":")))


if __name__ == "__main__":
    {"make": make, "check": check, "tokens": tokens}[sys.argv[1]](Path(sys.argv[2]))
