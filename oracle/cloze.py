"""Masked prompts on the golden case `roberta`: reviews with their labels, a tiny byte-level BPE tokenizer, and ten updates of AdamW and of MeZO.

Writes crates/engine/tests/golden/cloze/: tokenizer.json, reviews.tsv, and expected.safetensors with `ids`, the tokens of the first prompt
as `tokenizers` makes them, and for both methods `<method>.losses` and `<method>.final.<name>`. The loss is the cross-entropy among the two
tokens that may stand in the mask's place, as in MeZO's runs on RoBERTa.
"""

import json

import numpy as np
import tokenizers
import torch
import transformers as tf
from peft import PeftModel
from safetensors.torch import save_file

from families import GOLDEN
from methods import direction

FOLDER = GOLDEN / "cloze"
REVIEWS = [("a warm, funny film", 1), ("dull and much too long", 0), ("I left early", 0), ("the best of 2024", 1)]
WORDS = ["terrible", "great"]
UPDATES, RATE, EPS = 10, {"backprop": 1e-2, "mezo": 2e-3}, 1e-2
LINEARS = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense"]


def tokenizer():
    """Letters, and the merges that make one token of each answer."""
    texts = ["<s>", "<pad>", "</s>", "<mask>"] + list("Ġ.,'0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    merges = []
    for word in WORDS:
        for end in range(1, len(word) + 1):
            merges.append([f"Ġ{word[: end - 1]}", word[end - 1]])
            texts.append(f"Ġ{word[:end]}")
    special = lambda id: dict(id=id, content=texts[id], single_word=False, lstrip=id == 3, rstrip=False, normalized=False, special=True)  # noqa: E731
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(
        version="1.0", truncation=None, padding=None, added_tokens=[special(id) for id in range(4)], normalizer=None,
        pre_tokenizer=byte_level, decoder=byte_level,
        post_processor=dict(type="RobertaProcessing", sep=["</s>", 2], cls=["<s>", 0], trim_offsets=True, add_prefix_space=False),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
                   byte_fallback=False, ignore_merges=False, vocab={text: id for id, text in enumerate(texts)}, merges=merges),
    )  # fmt: skip


class Cloze:
    def __init__(self, tok):
        base = tf.AutoModelForMaskedLM.from_pretrained(GOLDEN / "roberta", attn_implementation="eager").double().eval()
        self.model = PeftModel.from_pretrained(base, GOLDEN / "roberta" / "adapter", is_trainable=True).double()
        self.prompts = [(torch.tensor(tok.encode(f"{text} It was<mask>.").ids), label) for text, label in REVIEWS]
        self.words = [tok.encode(f" {word}", add_special_tokens=False).ids for word in WORDS]
        assert all(len(word) == 1 for word in self.words), self.words
        named = dict(self.model.named_parameters())
        self.matrices = []  # (name in the file, parameter, whether it is a B), in the engine's order
        for block in range(base.config.num_hidden_layers):
            for linear in LINEARS:
                for factor in "AB":
                    name = f"base_model.model.roberta.encoder.layer.{block}.{linear}.lora_{factor}"
                    self.matrices.append((f"{name}.weight", named[f"{name}.default.weight"], factor == "B"))

    def loss(self):
        words = torch.tensor(self.words).flatten()
        losses = []
        for ids, label in self.prompts:
            at = (ids == 3).nonzero().item()
            logits = self.model(ids[None]).logits[0, at, words]
            losses.append(torch.nn.functional.cross_entropy(logits[None], torch.tensor([label])))
        return torch.stack(losses).mean()

    def final(self, method):
        return {f"{method}.final.{name}": p.detach().float().contiguous().clone() for name, p, _ in self.matrices}


def backprop(pupil):
    """Ten updates by AdamW of what has `matrices`, a `loss` and a `final`. Biases are not decayed, as transformers' trainer does."""
    losses = []
    biases = lambda yes: [p for name, p, _ in pupil.matrices if name.endswith(".bias") == yes]  # noqa: E731
    groups = [dict(params=biases(False), weight_decay=0.01), dict(params=biases(True), weight_decay=0.0)]
    step = torch.optim.AdamW([group for group in groups if group["params"]], lr=RATE["backprop"])
    for _ in range(UPDATES):
        step.zero_grad()
        loss = pupil.loss()
        loss.backward()
        losses.append(loss.item())
        step.step()
    return losses, pupil.final("backprop")


def mezo(pupil):
    """The same by MeZO."""
    losses = []
    # As the engine holds them: a B transposed, a bias as one row.
    held = lambda p, b: p.detach().T if b else torch.atleast_2d(p.detach())  # noqa: E731

    def put(values):
        for (_, p, b), value in zip(pupil.matrices, values):
            p.data.copy_(torch.from_numpy(value.T if b else value).reshape(p.shape))
        with torch.no_grad():
            return pupil.loss().item()

    for update in range(1, UPDATES + 1):
        theta = [held(p, b).numpy().copy() for _, p, b in pupil.matrices]
        z = [direction("mezo", at, 0, update, t) for at, t in enumerate(theta)]
        ahead, back = put([t + EPS * z for t, z in zip(theta, z)]), put([t - EPS * z for t, z in zip(theta, z)])
        losses.append((ahead + back) / 2)
        put([t - RATE["mezo"] * (ahead - back) / (2 * EPS) * z for t, z in zip(theta, z)])
    return losses, pupil.final("mezo")


def updates(fresh):
    """Losses and last numbers of a fresh pupil by either method."""
    out = {}
    for method, run in [("backprop", backprop), ("mezo", mezo)]:
        losses, final = run(fresh())
        print(f"{method}: {losses[0]:.5f} -> {losses[-1]:.5f}")
        assert np.isfinite(losses).all() and losses[-1] != losses[0]
        out |= {f"{method}.losses": torch.tensor(losses)} | final
    return out


def main():
    torch.set_num_threads(1)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False, indent=1) + "\n")
    (FOLDER / "reviews.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in REVIEWS))
    tok = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    out = {"ids": torch.tensor(tok.encode(f"{REVIEWS[0][0]} It was<mask>.").ids)}
    out |= updates(lambda: Cloze(tok))
    save_file(out, FOLDER / "expected.safetensors")
    (FOLDER / "expected.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
