"""Makes the small tokenizer.json fixtures of crates/text: one for each shape of tokenizer that real models have.

    python oracle/tokenizer_fixtures.py crates/text/tests/fixtures

They are trained on a text written out below, so the same package version makes the same files. Every file is what the
Hugging Face package itself writes; the tests compare ids with its Rust crate.
"""

import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")

TEXT = """
The quick brown fox jumps over the lazy dog. It's what we've said, they'll say, and I'd know: 1234567890, 3.14159 and 2024-07-26.
    def main(args):\n        return [x ** 2 for x in range(100) if x % 2 == 0]\n\n\n\tif not args:\r\n\t\tpass\r\n
A language model is fine-tuned on the device that holds the data, inside a memory budget that its user names.
Der schnelle braune Fuchs springt über den faulen Hund; größer, schöner, Straße. Élève, garçon, naïve, déjà vu.
Съешь же ещё этих мягких французских булок, да выпей чаю. Ταχίστη αλώπηξ βαφής ψημένη γη.
東京都に住んでいます。これは日本語の文章です。我们在学习自然语言处理。한국어 문장도 있습니다.
שלום עולם, מה שלומך היום? مرحبا بالعالم، كيف حالك اليوم؟ हिन्दी में एक वाक्य।
😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 e\u0301 n\u0303 ﬁ ½ ² Ⅳ ...!!! ??? --- === *** <b>bold</b> {"key": "value"} http://example.com/a?b=c&d=e#f
""" * 3


def corpus():
    yield from (line + "\n" for line in TEXT.split("\n"))
    yield from TEXT.split("\n\n")


def train(tokenizer, size, specials, alphabet=()):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=list(alphabet), show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def bytes_alphabet():
    return pre_tokenizers.ByteLevel.alphabet()


def smollm_like():
    """Byte level, every digit on its own, GPT-2's pattern."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    t.decoder = decoders.ByteLevel()
    return train(t, 700, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], bytes_alphabet())


def gpt2_like():
    """Byte level with a space put in front, and added tokens that strip, want whole words, or are normalised."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Lowercase()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    train(t, 600, ["<|endoftext|>"], bytes_alphabet())
    t.add_tokens([
        AddedToken("<mask>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("shout", normalized=True),
        AddedToken("<|end", normalized=False),
    ])
    return t


def qwen_like():
    """NFC, a pattern with the look-ahead, byte level without a pattern of its own."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    train(t, 700, [], bytes_alphabet())
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return t


def llama3_like():
    """Whole words taken as they are (ignore_merges), and a beginning token from a template."""
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    t.decoder = decoders.ByteLevel()
    train(t, 700, [], bytes_alphabet())
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    bos = ("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]} $B", special_tokens=[bos]),
    ])
    # Some merges are dropped, so that words are in the vocabulary that no merge reaches.
    d = json.loads(t.to_str())
    d["model"]["merges"] = [m for i, m in enumerate(d["model"]["merges"]) if i % 7 != 6]
    known = set(d["model"]["vocab"])
    assert all("".join(m) in known for m in d["model"]["merges"])
    return Tokenizer.from_str(json.dumps(d))


def spm():
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    return t, ["<unk>", "<s>", "</s>"] + byte_tokens


def llama2_like():
    """SentencePiece's ways: a mark for the space and in front of the text, bytes for unknown characters, no words."""
    t, specials = spm()
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    train(t, 800, specials)
    t.pre_tokenizer = None
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return without_rare(byte_tokens_are_plain(t), 5)


def mistral_like():
    """The same with a Metaspace pre-tokenizer that marks only the beginning."""
    t, specials = spm()
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    train(t, 700, specials)
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return without_rare(byte_tokens_are_plain(t), 4)


def gemma_like():
    """A mark for the space, nothing in front, runs of spaces and line ends as added tokens."""
    t, specials = spm()
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    train(t, 800, ["<pad>", "<eos>", "<bos>"] + specials)
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)])
    t = byte_tokens_are_plain(t)
    t.add_tokens([AddedToken(s, normalized=False) for s in ["\n\n", "\n\n\n", "▁▁", "▁▁▁", "<table>"]])
    t.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    return without_rare(t, 6)


def byte_tokens_are_plain(t):
    """Byte tokens are part of the vocabulary, not added tokens."""
    d = json.loads(t.to_str())
    d["added_tokens"] = [a for a in d["added_tokens"] if not a["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(d))


def without_rare(t, every):
    """Drops some characters from the vocabulary (under an unused name), so that bytes have to stand in for them."""
    d = json.loads(t.to_str())
    in_merges = {part for merge in d["model"]["merges"] for part in merge}
    rare = sorted(c for c in d["model"]["vocab"] if len(c) == 1 and ord(c) > 0x2FF and c not in in_merges)
    for c in rare[::every]:
        d["model"]["vocab"]["<unused_%X>" % ord(c)] = d["model"]["vocab"].pop(c)
    return Tokenizer.from_str(json.dumps(d))


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for make in (smollm_like, gpt2_like, qwen_like, llama3_like, llama2_like, mistral_like, gemma_like):
        text = json.dumps(json.loads(make().to_str()), ensure_ascii=False, separators=(",", ":"))
        path = out / f"{make.__name__}.json"
        path.write_text(text + "\n", encoding="utf-8")
        print(path.name, len(text))


if __name__ == "__main__":
    main()
