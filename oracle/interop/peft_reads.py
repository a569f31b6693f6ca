"""What PEFT and transformers make of a Hugging Face folder and a PEFT adapter; or, with `make`, an adapter that PEFT made and saved.

    peft_reads.py MODEL TEXT TOKENS ADAPTER
    peft_reads.py make MODEL ADAPTER

Prints a line of JSON: the mean loss of the first TOKENS tokens of the file TEXT. A warning of PEFT is an error.
"""

import json
import sys
import warnings
from pathlib import Path

import peft
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM


def main():
    torch.set_num_threads(2)
    if sys.argv[1] == "make":
        torch.manual_seed(7)
        base = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
        lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)
        lora.task_type = "CAUSAL_LM"
        peft.get_peft_model(base, lora).save_pretrained(sys.argv[3])
        return
    model, text, count, adapter = sys.argv[1:]
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted = peft.PeftModel.from_pretrained(base, adapter).eval()
    encoded = Tokenizer.from_file(f"{model}/tokenizer.json").encode(Path(text).read_text(), add_special_tokens=False)
    ids = torch.tensor([encoded.ids[: int(count)]])
    with torch.no_grad():
        loss = adapted(input_ids=ids, labels=ids).loss.item()
    print(json.dumps({"loss": loss, "tokens": ids.shape[1], "version": peft.__version__}))


if __name__ == "__main__":
    main()
