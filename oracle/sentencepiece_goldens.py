"""Makes crates/text/tests/fixtures/sentencepiece.json: a small SentencePiece model as GGUF carries it, and its own ids.

    pip install sentencepiece==0.2.2
    python oracle/sentencepiece_goldens.py crates/text/tests/fixtures

Pieces, scores and types (1 normal, 2 unknown, 3 control, 6 byte) are those that llama.cpp's converter
writes to `tokenizer.ggml.tokens`, `.scores` and `.token_type`. No text holds a special token: after one, llama.cpp and
Hugging Face's Llama tokenizer put a space where SentencePiece puts none, and the engine follows those two.
"""

import io
import json
import pathlib
import sys

import sentencepiece

from tokenizer_fixtures import TEXT

TEXTS = [
    "", " ", "a", "Hello, world!", "The quick brown fox jumps over the lazy dog.", "  two  spaces   three ",
    "tabs\tand\nlines\r\n\r\n  indented", "1234567890 3.14", "über Straße naïve", "e\u0301 n\u0303o ½ ﬁ",
    "😀 👩‍👩‍👧‍👦 東京都 한국어 שלום हिन्दी", "\u0000\u0001\ufffd\U0010ffff", "aaaaaaaaaaaaaaaaaaaaaaaa", "▁ ▁▁a",
    "languagelanguage modelmodels deviceholds", "=== --- *** ??? ...!!!",
]


def kind(model, i):
    if model.is_unknown(i):
        return 2
    if model.is_control(i):
        return 3
    return 6 if model.is_byte(i) else 1


def main():
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in TEXT.split("\n") if line), model_writer=file, model_type="bpe",
        vocab_size=620, character_coverage=0.98, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    ids = range(model.get_piece_size())
    golden = {
        "tokens": [model.id_to_piece(i) for i in ids],
        "scores": [model.get_score(i) for i in ids],
        "types": [kind(model, i) for i in ids],
        "bos": model.bos_id(),
        "eos": model.eos_id(),
        "cases": [{"text": text, "ids": model.encode(text), "decoded": model.decode(model.encode(text))} for text in TEXTS],
    }
    path = pathlib.Path(sys.argv[1]) / "sentencepiece.json"
    path.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
