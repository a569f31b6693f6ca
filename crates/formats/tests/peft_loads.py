"""Loads the adapter in folder argv[1] with PEFT, every warning an error, checks its values, and saves it to argv[2].

Run by tests/formats/adapter.rs, which knows the values: tensor i holds i + element / 64.
"""

import logging
import sys
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import peft

config = LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=32
)
base = LlamaForCausalLM(config)

warnings.simplefilter("error")
logging.raiseExceptions = True
model = peft.PeftModel.from_pretrained(base, sys.argv[1])
status = peft.PeftModel.load_adapter(model, sys.argv[1], "again")
assert not status.unexpected_keys, status.unexpected_keys
assert not [key for key in status.missing_keys if "lora" in key], status.missing_keys

adapted = {name for name, module in base.named_modules() if hasattr(module, "lora_A")}
assert adapted == {f"model.layers.1.self_attn.{m}_proj" for m in "qv"}, adapted
for i, name in enumerate(["q_proj", "v_proj"]):
    module = getattr(base.model.layers[1].self_attn, name)
    for j, factor in enumerate([module.lora_A, module.lora_B]):
        weight = factor["default"].weight
        want = 2 * i + j + torch.arange(weight.numel()) / 64
        assert torch.equal(weight.flatten(), want), (name, j)
    assert module.scaling["default"] == 1.5

warnings.simplefilter("default")
model.save_pretrained(sys.argv[2], selected_adapters=["default"], save_embedding_layers=False)
