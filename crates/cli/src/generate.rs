//! `pocketune generate`.

use std::path::PathBuf;

use pocketune::model::{Model, Source};
use pocketune::train::{Budget, GenerateOptions, Generator, RunOptions, Sampling};
use serde_json::json;

use crate::args::GenerateArgs;
use crate::{Failure, say};

/// More tokens than any model reads; a larger number is a slip.
const MOST_TOKENS: usize = 1 << 24;

/// Generates and prints as tokens come.
pub fn run(args: GenerateArgs) -> Result<(), Failure> {
    let sampling = Sampling { temperature: args.temp, top_p: args.top_p, seed: args.seed };
    let request = Request {
        model: args.run.source(args.model),
        adapter: args.adapter,
        prompt: args.prompt,
        chat: args.chat,
        max_tokens: args.max_tokens,
        sampling,
        budget: args.run.budget()?,
        run: args.run.options(),
    };
    request.stream(&mut |piece| say(piece))?;
    say("\n");
    Ok(())
}

/// A prompt and what to do with it.
pub struct Request {
    pub model: Source,
    pub adapter: Option<PathBuf>,
    pub prompt: String,
    pub chat: bool,
    pub max_tokens: usize,
    pub sampling: Sampling,
    pub budget: Budget,
    pub run: RunOptions,
}

impl Request {
    /// Hands the continuation over piece by piece, each of whole characters.
    pub fn stream(self, each: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        if self.max_tokens > MOST_TOKENS {
            return Err(Failure(format!("--max-tokens {}: at most {MOST_TOKENS}", self.max_tokens)));
        }
        let model = Model::open(&self.model).map_err(Failure::new)?;
        model.check_next_token().map_err(Failure::new)?;
        let tokenizer = model.tokenizer().map_err(Failure::new)?;
        let mut prompt = Vec::new();
        if self.chat {
            let template = model.chat_template().map_err(Failure::new)?;
            let template = template.ok_or_else(|| Failure("--chat: the model has no chat template".into()))?;
            let messages = [json!({ "role": "user", "content": self.prompt })];
            let rendered = template.render(&messages, None, true, tokenizer.ends()).map_err(Failure::new)?.text;
            tokenizer.encode(&rendered, false, &mut prompt);
        } else {
            tokenizer.encode(&self.prompt, true, &mut prompt);
        }
        if prompt.is_empty() {
            return Err(Failure("--prompt: no token in it".into()));
        }
        model.check_tokens(&prompt).map_err(|fault| Failure(format!("--prompt: {fault}")))?;
        drop(model);
        let options = GenerateOptions {
            model: self.model,
            adapter: self.adapter,
            sampling: self.sampling,
            budget: self.budget,
            run: self.run,
        };
        let mut generator = Generator::new(&options, prompt.len() + self.max_tokens.max(1)).map_err(Failure::new)?;
        let mut decoder = tokenizer.decoder(true);
        let (mut left, mut piece) = (self.max_tokens, String::new());
        generator
            .generate(&prompt, &mut |token| {
                if left == 0 || Some(token) == tokenizer.eos() {
                    return false;
                }
                left -= 1;
                piece.clear();
                decoder.push(token, &mut piece);
                each(&piece);
                left > 0
            })
            .map_err(Failure::new)?;
        piece.clear();
        decoder.finish(&mut piece);
        each(&piece);
        Ok(())
    }
}
