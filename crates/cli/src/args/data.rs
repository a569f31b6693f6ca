//! What can be typed about data: the same words for every command that reads it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pocketune::train::{DataOptions, DataSource, TemplateChoice};
use pocketune_text::{Fields, Mask, Reading, Recipe};

#[derive(Args, Clone)]
#[command(next_help_heading = "Data")]
pub struct DataArgs {
    /// Longer records are cut to this many tokens; text files are cut into records of as many.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, aliases = ["max-length", "max-seq-len"])]
    pub max_seq_length: usize,
    /// Take the loss on what the assistant writes alone: all of it, or the last answer.
    #[arg(long, value_enum, alias = "assistant-loss-only", num_args = 0..=1, default_value = "none", default_missing_value = "all")]
    pub mask_prompt: MaskArg,
    /// A Jinja file in place of the model's chat template, or none to join prompts and answers as text.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Read rows of a labelled data set as questions; the loss is on the answer.
    #[arg(long, value_enum)]
    pub task: Option<TaskArg>,
    /// Tell a task's answers apart as classes, by a head on the text itself that is trained beside the adapter, where the model has none (roberta).
    #[arg(long, requires = "task")]
    pub classification_head: bool,
    /// Leave out lines that are no records, and say so.
    #[arg(long)]
    pub skip_bad_lines: bool,
    /// The field, or column, that holds plain text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub text_feature: String,
    /// The field that holds a list of messages.
    #[arg(long, value_name = "NAME", default_value = "messages")]
    pub chat_feature: String,
    /// The field, or column, that holds what is asked.
    #[arg(long, value_name = "NAME", default_value = "prompt")]
    pub prompt_feature: String,
    /// The field, or column, that holds the answer.
    #[arg(long, value_name = "NAME", default_value = "completion")]
    pub completion_feature: String,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum TaskArg {
    /// Film reviews (sentence, label): terrible or great.
    Sst2,
    /// Questions about a passage: no or yes.
    Boolq,
    /// Does the hypothesis follow from the premise?
    Rte,
    /// The same, with neither as a third answer.
    Cb,
    /// Which of two is the cause, or the effect?
    Copa,
    /// Does a word mean the same in two sentences?
    Wic,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum MaskArg {
    /// Every answer.
    #[value(alias = "true")]
    All,
    /// The last answer.
    Last,
    /// Everything counts.
    #[value(alias = "false")]
    None,
}

impl DataArgs {
    /// As the engine takes it.
    pub fn options(&self, source: DataSource) -> DataOptions {
        DataOptions {
            reading: match self.task {
                Some(task) => Reading::Task(task.recipe()),
                None => Reading::Fields(Fields {
                    text: self.text_feature.clone(),
                    chat: self.chat_feature.clone(),
                    prompt: self.prompt_feature.clone(),
                    completion: self.completion_feature.clone(),
                }),
            },
            mask: match self.mask_prompt {
                MaskArg::All => Mask::All,
                MaskArg::Last => Mask::Last,
                MaskArg::None => Mask::None,
            },
            template: match &self.chat_template {
                None => TemplateChoice::Own,
                Some(path) if path.as_os_str() == "none" => TemplateChoice::None,
                Some(path) => TemplateChoice::File(path.clone()),
            },
            classes: self.classification_head,
            skip_bad_lines: self.skip_bad_lines,
            ..DataOptions::plain(source)
        }
    }
}

impl TaskArg {
    fn recipe(self) -> Recipe {
        match self {
            Self::Sst2 => Recipe::Sst2,
            Self::Boolq => Recipe::BoolQ,
            Self::Rte => Recipe::Rte,
            Self::Cb => Recipe::Cb,
            Self::Copa => Recipe::Copa,
            Self::Wic => Recipe::Wic,
        }
    }
}
