//! Recipes for labelled data sets: how a row of SST-2, BoolQ, RTE, CB, COPA or WiC becomes a question with a few possible answers, of which
//! one is right. Training takes the loss on the right answer; measuring asks which answer the model finds likeliest. It refuses rows
//! without the fields or with a label that the data set does not have.

use serde_json::{Map, Value};

/// A labelled data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// Film reviews: bad or good.
    Sst2,
    /// Yes or no, by a passage.
    BoolQ,
    /// Whether one sentence follows from another.
    Rte,
    /// Whether something follows, its opposite does, or neither.
    Cb,
    /// Which of two is the cause or the effect.
    Copa,
    /// Whether a word means the same in two sentences.
    Wic,
}

/// A question with its possible answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What comes before the answer.
    pub prompt: String,
    /// What it is about, without the words of a prompt: one text, or two.
    pub texts: Vec<String>,
    /// The answers, each as it continues the prompt.
    pub choices: Vec<String>,
    /// The number of the right one.
    pub answer: usize,
}

impl Recipe {
    /// Makes a question of a row; the error is its fault in words.
    pub(crate) fn question(self, row: &Value) -> Result<Question, String> {
        let Value::Object(row) = row else { return Err("a row is an object with named fields".into()) };
        let text = |name: &str| match row.get(name) {
            Some(Value::String(text)) => Ok(text.trim()),
            Some(_) => Err(format!("`{name}` is no text")),
            None => Err(format!("no `{name}`, which {} has", self.name())),
        };
        let both = |one: &str, other: &str| vec![one.to_owned(), other.to_owned()];
        let (prompt, texts, choices): (String, Vec<String>, Vec<String>) = match self {
            Self::Sst2 => {
                let sentence = text("sentence")?;
                (format!("{sentence} It was"), vec![sentence.into()], self.words())
            }
            Self::BoolQ => {
                let (passage, question) = (text("passage")?, text("question")?);
                let prompt = format!("{passage}\nQuestion: {question}?\nAnswer:");
                (prompt, both(question, passage), self.words())
            }
            Self::Rte | Self::Cb => {
                let (premise, hypothesis) = (text("premise")?, text("hypothesis")?);
                let last = if self == Self::Rte { "True or False?" } else { "True, False, or Neither?" };
                let prompt = format!("{premise}\nQuestion: {hypothesis} {last}\nAnswer:");
                (prompt, both(premise, hypothesis), self.words())
            }
            Self::Copa => {
                let joint = match text("question")? {
                    "cause" => "because",
                    "effect" => "so",
                    other => return Err(format!("`question` is `{other}`, not `cause` or `effect`")),
                };
                let choices = [text("choice1")?, text("choice2")?].map(|choice| format!(" {}", lower_first(choice)));
                let premise = text("premise")?.trim_end_matches('.');
                (format!("{premise} {joint}"), vec![premise.into()], choices.into())
            }
            Self::Wic => {
                let (one, other, word) = (text("sentence1")?, text("sentence2")?, text("word")?);
                let asked = format!("Is the word \"{word}\" used in the same way in the two sentences above?");
                let prompt = format!("{one}\n{other}\nQuestion: {asked}\nAnswer:");
                (prompt, both(&format!("{word}: {one}"), other), self.words())
            }
        };
        let label = label(row)?;
        let answer = self.labels().iter().position(|names| names.contains(&label.as_str())).ok_or_else(|| {
            let known: Vec<&str> = self.labels().iter().map(|names| names[0]).collect();
            format!("`label` is `{label}`; {} has {}", self.name(), known.join(", "))
        })?;
        Ok(Question { prompt, texts, choices, answer })
    }

    /// The answers, where they are the same for all rows.
    pub(crate) fn answers(self) -> Option<&'static [&'static str]> {
        Some(match self {
            Self::Sst2 => &["terrible", "great"],
            Self::BoolQ | Self::Wic => &["no", "yes"],
            Self::Rte => &["True", "False"],
            Self::Cb => &["True", "False", "Neither"],
            Self::Copa => return None,
        })
    }

    /// The answers as they follow a text.
    fn words(self) -> Vec<String> {
        self.answers().unwrap_or_default().iter().map(|word| format!(" {word}")).collect()
    }

    /// How many classes its answers are, where they are the same for all rows.
    pub fn classes(self) -> Option<usize> {
        self.answers().map(<[_]>::len)
    }

    /// What the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sst2 => "sst2",
            Self::BoolQ => "boolq",
            Self::Rte => "rte",
            Self::Cb => "cb",
            Self::Copa => "copa",
            Self::Wic => "wic",
        }
    }

    /// What files write for each answer, in the order of the choices.
    fn labels(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Sst2 | Self::Copa => &[&["0"], &["1"]],
            Self::BoolQ | Self::Wic => &[&["false", "0"], &["true", "1"]],
            Self::Rte => &[&["entailment", "0"], &["not_entailment", "1"]],
            Self::Cb => &[&["entailment", "0"], &["contradiction", "1"], &["neutral", "2"]],
        }
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

fn label(row: &Map<String, Value>) -> Result<String, String> {
    match row.get("label") {
        Some(Value::String(text)) => Ok(text.trim().to_owned()),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => Ok(value.to_string()),
        _ => Err("no `label`, a word, a number, or true or false".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(recipe: Recipe, row: Value) -> (String, String, usize) {
        let question = recipe.question(&row).unwrap();
        (question.prompt.clone(), question.choices[question.answer].clone(), question.choices.len())
    }

    #[test]
    fn every_recipe_asks_and_knows_the_answer() {
        for (recipe, row, prompt, answer, choices) in [
            (Recipe::Sst2, json!({"sentence": "fine . ", "label": "1"}), "fine . It was", " great", 2),
            (
                Recipe::BoolQ,
                json!({"passage": "P.", "question": "is it", "label": false}),
                "P.\nQuestion: is it?\nAnswer:",
                " no",
                2,
            ),
            (
                Recipe::Rte,
                json!({"premise": "P.", "hypothesis": "H.", "label": "not_entailment"}),
                "P.\nQuestion: H. True or False?\nAnswer:",
                " False",
                2,
            ),
            (
                Recipe::Cb,
                json!({"premise": "P.", "hypothesis": "H", "label": "neutral"}),
                "P.\nQuestion: H True, False, or Neither?\nAnswer:",
                " Neither",
                3,
            ),
            (
                Recipe::Copa,
                json!({"premise": "It fell.", "choice1": "It broke.", "choice2": "Æ.", "question": "effect", "label": 0}),
                "It fell so",
                " it broke.",
                2,
            ),
            (
                Recipe::Wic,
                json!({"sentence1": "A.", "sentence2": "B.", "word": "w", "label": true}),
                "A.\nB.\nQuestion: Is the word \"w\" used in the same way in the two sentences above?\nAnswer:",
                " yes",
                2,
            ),
        ] {
            assert_eq!(asked(recipe, row), (prompt.to_owned(), answer.to_owned(), choices));
        }
    }

    #[test]
    fn rows_that_are_none_of_the_set_are_refused() {
        for (recipe, row, words) in [
            (Recipe::Sst2, json!({"text": "a", "label": 1}), "no `sentence`, which sst2 has"),
            (Recipe::Sst2, json!({"sentence": "a", "label": 2}), "`label` is `2`; sst2 has 0, 1"),
            (Recipe::Sst2, json!({"sentence": "a"}), "no `label`"),
            (Recipe::Sst2, json!({"sentence": 1, "label": 1}), "`sentence` is no text"),
            (Recipe::Copa, json!({"premise": "a", "question": "x", "label": 1}), "`question` is `x`"),
            (Recipe::Cb, json!([1]), "a row is an object"),
        ] {
            assert!(recipe.question(&row).is_err_and(|fault| fault.starts_with(words)), "{row}");
        }
    }
}
