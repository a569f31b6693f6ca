//! The token numbers of texts, for other tools to be compared with: `token_ids MODEL < lines`, where MODEL is a GGUF file or a folder with a
//! `tokenizer.json`, and a line is an object with a `text`. Each becomes a line with a list of numbers, nothing put before or behind.

use std::error::Error;
use std::path::Path;

use pocketune_formats::folder::Folder;
use pocketune_formats::{Gguf, Mapped};
use pocketune_text::Tokenizer;

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).ok_or("usage: token_ids MODEL < lines")?;
    let path = Path::new(&model);
    let tokenizer = match path.is_dir() {
        true => Tokenizer::from_folder(&Folder::open(path)?)?,
        false => Tokenizer::from_gguf(&Gguf::read(&Mapped::open(path)?, 0)?.0)?,
    };
    for line in std::io::stdin().lines() {
        let line: serde_json::Value = serde_json::from_str(&line?)?;
        let mut ids = Vec::new();
        tokenizer.encode(line["text"].as_str().ok_or("a line without a text")?, false, &mut ids);
        println!("{}", serde_json::to_string(&ids)?);
    }
    Ok(())
}
