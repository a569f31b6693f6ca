//! What a tokenizer costs: load time, memory by its own account and by the system's, and encoding speed.
//!
//! `cargo run --release -p pocketune-text --example tokenizer_cost -- FILE [TEXT]`, where FILE is a tokenizer.json or a
//! GGUF file. Peak memory is read from Linux's /proc.

use pocketune_formats::{Gguf, Mapped};
use pocketune_text::Tokenizer;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

fn peak_rss() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("unknown".into(), |rest| rest.trim().to_owned())
}

fn load(path: &Path) -> Result<Tokenizer, Box<dyn Error>> {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        let (gguf, _) = Gguf::read(&Mapped::open(path)?, 0)?;
        return Ok(Tokenizer::from_gguf(&gguf)?);
    }
    Ok(Tokenizer::from_json_file(path)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("name a tokenizer.json or a GGUF file")?;
    println!("before: peak RSS {}", peak_rss());
    let start = Instant::now();
    let tokenizer = load(Path::new(&path))?;
    let (seconds, held) = (start.elapsed().as_secs_f64(), tokenizer.heap_bytes() as f64 / 1e6);
    println!(
        "loaded: {} ids in {seconds:.2} s, {held:.1} MB by its own account, peak RSS {}",
        tokenizer.vocab_size(),
        peak_rss()
    );
    if let Some(text) = args.next() {
        let text = std::fs::read_to_string(text)?;
        let (start, mut ids) = (Instant::now(), Vec::new());
        tokenizer.encode(&text, false, &mut ids);
        let speed = text.len() as f64 / 1e6 / start.elapsed().as_secs_f64();
        println!("encoded: {} tokens, {speed:.1} MB/s, peak RSS {}", ids.len(), peak_rss());
    }
    Ok(())
}
