"""A head of classes on the golden case `roberta`, as transformers' RobertaForSequenceClassification has it: pairs of sentences in three classes, and ten updates of AdamW
and of MeZO of an adapter with the head beside it, as PEFT's `modules_to_save` keeps it.

Writes crates/engine/tests/golden/classifier/: head.safetensors, a head of two classes for `learned.py`; adapter/, as PEFT saved it, with a head of three; pairs.jsonl; and
expected.safetensors with `<method>.losses` and `<method>.final.<name>` for both methods.
"""

import json
import shutil

import tokenizers
import torch
import transformers as tf
from peft import LoraConfig, TaskType, get_peft_model
from safetensors.torch import load_file, save_file

import cloze
from families import GOLDEN, ROBERTA_LINEARS, save_adapter

FOLDER = GOLDEN / "classifier"
PAIRS = [("the cat sat on the mat", "a cat sat", 0), ("it rained all day", "the day was dry", 1), ("she left", "he had not left by 9", 2), ("he ran", "he moved", 0)]
CLASSES = ["entailment", "contradiction", "neutral"]
HEAD = [f"classifier.{linear}.{kind}" for linear in ("dense", "out_proj") for kind in ("weight", "bias")]


def base(classes):
    """The encoder of the case, under a head of its own."""
    config = tf.RobertaConfig.from_pretrained(GOLDEN / "roberta", num_labels=classes, attn_implementation="eager")
    model = tf.RobertaForSequenceClassification(config)
    stored = load_file(GOLDEN / "roberta" / "model.safetensors")
    wrong = model.load_state_dict({name: t for name, t in stored.items() if name.startswith("roberta.")}, strict=False)
    assert not wrong.unexpected_keys and all(name.startswith("classifier.") for name in wrong.missing_keys), wrong
    rng = torch.Generator().manual_seed(20240612)
    with torch.no_grad():
        for name in HEAD:
            p = dict(model.named_parameters())[name]
            p.copy_(0.3 * torch.randn(p.shape, generator=rng))
    return model.eval()


def logits(model, encoded):
    return torch.cat([model(torch.tensor(ids)[None]).logits for ids in encoded])


class Reviews:
    """The reviews of `cloze.py` as two classes, for a model whose own parameters are trained."""

    def __init__(self, model):
        tok = tokenizers.Tokenizer.from_file(str(cloze.FOLDER / "tokenizer.json"))
        self.model, self.encoded = model, [tok.encode(text).ids for text, _ in cloze.REVIEWS]
        self.labels = torch.tensor([label for _, label in cloze.REVIEWS])

    def loss(self):
        return torch.nn.functional.cross_entropy(logits(self.model, self.encoded), self.labels)


class Adapted:
    """An adapter with a head on the pairs."""

    def __init__(self, tok):
        model = base(len(CLASSES))
        lora = dict(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=ROBERTA_LINEARS, task_type=TaskType.SEQ_CLS)
        self.model = get_peft_model(model, LoraConfig(**lora, modules_to_save=["classifier"]))
        rng = torch.Generator().manual_seed(20240613)
        self.matrices = []  # (name in the file, parameter, whether it is a B), in the engine's order
        named = dict(self.model.named_parameters())
        for block in range(model.config.num_hidden_layers):
            for linear in cloze.LINEARS:
                for factor in "AB":
                    name = f"base_model.model.roberta.encoder.layer.{block}.{linear}.lora_{factor}"
                    self.matrices.append((f"{name}.weight", named[f"{name}.default.weight"], factor == "B"))
        with torch.no_grad():
            for _, p, _ in self.matrices:
                p.copy_(0.15 * torch.randn(p.shape, generator=rng))
        for name in HEAD:
            module, rest = name.split(".", 1)
            self.matrices.append((f"base_model.model.{name}", named[f"base_model.model.{module}.modules_to_save.default.{rest}"], False))
        trained = {id(p) for p in self.model.parameters() if p.requires_grad}
        assert trained == {id(p) for _, p, _ in self.matrices}
        self.encoded = [tok.encode(premise, hypothesis).ids for premise, hypothesis, _ in PAIRS]
        self.labels = torch.tensor([label for *_, label in PAIRS])

    def double(self):
        self.model.double().eval()
        return self

    def loss(self):
        return torch.nn.functional.cross_entropy(logits(self.model, self.encoded), self.labels)

    def final(self, method):
        return {f"{method}.final.{name}": p.detach().float().contiguous().clone() for name, p, _ in self.matrices}


def main():
    torch.set_num_threads(1)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    rows = [dict(premise=premise, hypothesis=hypothesis, label=CLASSES[label]) for premise, hypothesis, label in PAIRS]
    (FOLDER / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_file({name: p.detach().clone() for name, p in base(2).named_parameters() if name in HEAD}, FOLDER / "head.safetensors")
    tok = tokenizers.Tokenizer.from_file(str(cloze.FOLDER / "tokenizer.json"))
    first = Adapted(tok)
    save_adapter(first.model, FOLDER / "adapter")
    with torch.no_grad():
        assert logits(first.double().model, first.encoded).std() > 0.05, "the head has to tell records apart"
    out = cloze.updates(lambda: Adapted(tok).double())
    save_file(out, FOLDER / "expected.safetensors")
    for path in FOLDER.rglob("*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    main()
