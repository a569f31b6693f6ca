//! Texts that trip tokenizers up.

/// The texts, the long ones made on the spot.
pub fn texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "",
        " ",
        "  ",
        "\n",
        "a",
        "Hello, world!",
        " leading and trailing ",
        "  two  spaces   three    four\u{3000}\u{3000}wide\u{a0}\u{a0}hard",
        "tabs\t\tand\r\nCRLF\r\n\r\nlines\n\n\n\n  indented\n\tmore\r",
        "It's we've THEY'LL I'D you'Re 'S 'ſ ''''",
        "0 12 345 6789 12345678901234567890 3.14159 1,000,000 ½ ² Ⅳ ٣٤٥ १२३ 𝟘𝟙",
        "über größer Straße ÉLÈVE İstanbul ΣΑΣ ﬁnal",
        "e\u{301} n\u{303}o \u{1100}\u{1161}\u{11a8} \u{212b} \u{1e9b}\u{323} \u{fb01} a\u{328}\u{301}",
        "\u{301}\u{301}\u{301} combining first",
        "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ☝🏿 ❤️",
        "東京都に住んでいます。我们在学习自然语言处理。한국어 문장도 있습니다. ไทยไม่มีช่องว่าง",
        "שלום עולם مرحبا بالعالم \u{202e}gnahc\u{202c} हिन्दी में",
        "Съешь же ещё этих мягких французских булок",
        "\u{0}\u{1}\u{7f}\u{80}\u{85}\u{2028}\u{2029}\u{feff}\u{fffd}\u{10ffff}\u{e000}\u{378}",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        "<|endoftext|><|endoftext|> x <|endoftext|>y<|endoftex|><|endof<|endoftext|>",
        "<|begin_of_text|>a<|eot_id|> b <s>c</s> d <bos><start_of_turn>user\nq<end_of_turn>\n",
        "<s> <s><unk> <pad></s> <0x0A> <0xFF> <0xE2><0x96><0x81> ▁ ▁▁ ▁▁▁▁a▁b",
        "x  <mask>  y<mask>z <right>   w<right>\n\nv word words sword word. (word) SHOUT shout Shouted",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}</tool_call> <table><tr>",
        "def f(x):\n    return {k: v**2 for k, v in x.items()}  # done\n\n\nif __name__ == '__main__':\n\tf({})\n",
        "http://example.com/a?b=c&d=e#f user@mail.org C:\\dir\\file.txt $1.50 50% #tag @you ~/x *b* _i_ `c`",
        "...!!!???---===***///\\\\\\ ….–—«»“”‘’",
        "don\u{2019}t   \u{2019}s \u{200b}zero\u{200d}width \u{ad}soft",
    ]
    .map(str::to_owned)
    .into();
    texts.push(" ".repeat(700));
    texts.push("\n".repeat(300) + "x" + &"\t \n".repeat(50));
    texts.push("a".repeat(3000));
    texts.push("the quick brown fox ".repeat(200));
    texts.push("ab1 é東😀".repeat(100));
    texts.push("\u{e000}".repeat(50));
    texts.push((0x20..0x3000u32).step_by(3).filter_map(char::from_u32).collect());
    texts.push((0x20..0x250u32).flat_map(|c| [char::from_u32(c), Some(' ')]).flatten().collect());
    texts.push(scramble());
    texts
}

/// Characters of many kinds in a pseudo-random order.
fn scramble() -> String {
    const KINDS: &[char] = &[
        'a', 'e', 't', 'T', '\'', ' ', ' ', '\n', '\r', '\t', '1', '9', '.', '-', 'é', '\u{301}', 'ß', '東', '😀', '▁',
        '<', '|', 's',
    ];
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        KINDS[(state >> 33) as usize % KINDS.len()]
    };
    (0..20_000).map(|_| next()).collect()
}
