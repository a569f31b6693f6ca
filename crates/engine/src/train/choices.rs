//! Labelled data: which of a question's answers the model finds likeliest, by the sum of their tokens' log-probabilities. Every answer is one
//! pass over prompt and answer, so an evaluation needs the memory of one record.

use super::data::Reader;
use super::evaluate::ready;
use super::options::check_batch;
use super::{EvalOptions, Rows};
use crate::backend::Noise;
use crate::error::{Error, Result};
use crate::memory;
use crate::model::Model;
use crate::store::TokenWriter;

/// How many questions were answered as they are labelled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Questions.
    pub asked: usize,
    /// Of these, answered as labelled.
    pub right: usize,
    /// What guessing would answer right on average.
    pub by_chance: f64,
    /// Of the label that is the most frequent, so many: what always giving that answer would reach.
    pub most_frequent: usize,
}

/// Scores a model on the task of `options.data`.
///
/// # Errors
/// Whatever is wrong with options, files, data or the numbers.
pub fn score(options: &EvalOptions) -> Result<Score> {
    check_batch(1, options.max_seq_length)?;
    let model = Model::open(&options.model)?;
    model.check_reading(&options.data.reading)?;
    let data = options.data.to_measure()?;
    let path = data.source.training_file()?;
    let tokenizer = model.tokenizer()?;
    let mut writer = TokenWriter::new(&std::env::temp_dir())?;
    // For each question the number of its choices and of the right one.
    let mut questions: Vec<(u8, u8)> = Vec::new();
    let mut failed = None;
    let cloze = data.cloze(&model, &tokenizer)?;
    let reader = Reader::new(&model, &tokenizer, None, &data, options.max_seq_length).with_cloze(cloze.as_ref());
    reader.each_question(&path, &mut |choices, answer| {
        questions.push((choices.len() as u8, answer as u8));
        for choice in choices {
            failed = failed.take().or(writer.push(&choice.ids, &choice.loss).err());
        }
    })?;
    failed.map_or(Ok(()), Err)?;
    if questions.is_empty() {
        return Err(Error::Data { path, fault: "no record in it".into() });
    }
    let tokens = writer.finish()?;
    drop(tokenizer);
    model.files.files().iter().for_each(|file| file.release(0, file.bytes().len()));
    memory::trim();
    let (mut cpu, program) = ready(options, model, (1, tokens.longest()))?;
    let mut rows = Rows::with_capacity(1, tokens.longest(), tokens.longest()).with_cloze(cloze);
    let (mut score, mut first) = (Score::default(), 0);
    let mut by_label = [0_usize; 256];
    for &(choices, answer) in &questions {
        let (mut best, mut chosen) = (f64::INFINITY, usize::MAX);
        for choice in 0..usize::from(choices) {
            rows.fill(&tokens, std::iter::once(first + choice))?;
            let outcome = cpu.run(&program, rows.batch(rows.targets(), Noise::default()), 0, None)?;
            if !outcome.loss.is_finite() {
                let unknown = || Error::Numbers(format!("the loss of a choice is {}", outcome.loss));
                return Err(cpu.weights().find_not_finite().unwrap_or_else(unknown));
            }
            if outcome.loss < best {
                (best, chosen) = (outcome.loss, choice);
            }
        }
        first += usize::from(choices);
        score.asked += 1;
        score.right += usize::from(chosen == usize::from(answer));
        score.by_chance += 1.0 / f64::from(choices);
        by_label[usize::from(answer)] += 1;
    }
    score.by_chance /= score.asked as f64;
    score.most_frequent = by_label.into_iter().max().unwrap_or(0);
    Ok(score)
}
