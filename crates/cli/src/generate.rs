//! `pocketune generate`.

use std::path::PathBuf;

use pocketune::beside::all_ends;
use pocketune::model::{Model, Source};
use pocketune::train::{Budget, GenerateOptions, Generator, RunOptions, Sampling, TemplateChoice};
use serde_json::json;

use crate::args::GenerateArgs;
use crate::{Failure, say};

/// More tokens than any model reads; a larger number is a slip.
const MOST_TOKENS: usize = 1 << 24;

/// Generates and prints as tokens come.
pub fn run(args: GenerateArgs) -> Result<(), Failure> {
    let request = Request {
        model: args.run.source(args.model),
        adapter: args.adapter,
        prompt: args.prompt,
        chat: args.chat.then(|| args.template.choice()),
        max_tokens: args.max_tokens,
        sampling: args.sampling.sampling(),
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
    /// For a prompt that is a user's message, what turns it into text.
    pub chat: Option<TemplateChoice>,
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
        let (mut prompt, adapter) = (Vec::new(), self.adapter.as_deref());
        let mut template = None;
        if let Some(choice) = &self.chat {
            let found = choice.find(&model, adapter).map_err(Failure::new)?;
            let found = found.ok_or_else(|| Failure("--chat: the model has no chat template".into()))?;
            let messages = [json!({ "role": "user", "content": self.prompt })];
            let rendered = found.render(&messages, None, true, tokenizer.ends()).map_err(Failure::new)?.text;
            tokenizer.encode(&rendered, false, &mut prompt);
            template = Some(found);
        } else {
            tokenizer.encode(&self.prompt, true, &mut prompt);
        }
        if prompt.is_empty() {
            return Err(Failure("--prompt: no token in it".into()));
        }
        model.check_tokens(&prompt).map_err(|fault| Failure(format!("--prompt: {fault}")))?;
        let ends = all_ends(&model, &tokenizer, template.as_ref(), adapter).map_err(Failure::new)?;
        drop((model, template));
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
                if left == 0 || ends.contains(&token) {
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
