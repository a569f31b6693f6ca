"""What PEFT and transformers make of a RoBERTa folder and an adapter with a head of classes.

    classes_reads.py MODEL ADAPTER PAIRS

Prints a line of JSON: the mean loss of the pairs of sentences in the file PAIRS. A warning of PEFT is an error.
"""

import json
import sys
import warnings
from pathlib import Path

import peft
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

CLASSES = ["entailment", "contradiction", "neutral"]


def main():
    model, adapter, pairs = sys.argv[1:]
    base = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32, num_labels=len(CLASSES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted = peft.PeftModel.from_pretrained(base, adapter).eval()
    tokenizer, losses = Tokenizer.from_file(f"{model}/tokenizer.json"), []
    for row in map(json.loads, Path(pairs).read_text().splitlines()):
        ids = tokenizer.encode(row["premise"], row["hypothesis"]).ids
        with torch.no_grad():
            losses.append(adapted(input_ids=torch.tensor([ids]), labels=torch.tensor([CLASSES.index(row["label"])])).loss.item())
    print(json.dumps({"loss": sum(losses) / len(losses)}))


if __name__ == "__main__":
    main()
