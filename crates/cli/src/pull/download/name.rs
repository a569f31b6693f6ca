//! What a model may be called: a name of the table, or `hf:owner/name`.
//!
//! Names become paths and addresses, so only letters, digits, `-`, `_` and `.` get through, and nothing that could climb out of
//! a folder.

use super::error::PullError;
use super::known::{KNOWN, Known};

/// The most letters that an owner, a repository or a file of the Hub may have.
const LONGEST: usize = 96;

/// A model that can be asked for.
#[derive(Debug)]
pub enum Name {
    /// One of the table.
    Known(&'static Known),
    /// A repository of the Hub.
    Hub {
        /// The user or organisation.
        owner: String,
        /// The repository.
        name: String,
    },
}

impl Name {
    /// Reads what was typed.
    pub fn parse(text: &str) -> Result<Self, PullError> {
        let fault = |fault: String| PullError::Name { name: text.to_owned(), fault };
        if let Some(repository) = text.strip_prefix("hf:") {
            return match repository.split_once('/') {
                Some((owner, name)) if is_plain(owner) && is_plain(name) => {
                    Ok(Self::Hub { owner: owner.to_owned(), name: name.to_owned() })
                }
                _ => Err(fault(
                    "a model of the Hugging Face Hub is hf:owner/name, of letters, digits, -, _ and .".into(),
                )),
            };
        }
        KNOWN.iter().find(|known| known.name == text).map(Self::Known).ok_or_else(|| {
            let known: Vec<String> = KNOWN.iter().map(|known| format!("{} ({})", known.name, known.about)).collect();
            fault(format!("no such model; known are {}, and hf:owner/name", known.join(", ")))
        })
    }
}

/// Whether `part` is safe as the name of a file and as a piece of an address.
pub fn is_plain(part: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    (1..=LONGEST).contains(&part.len())
        && part.bytes().all(allowed)
        && !part.starts_with(['.', '-'])
        && !part.ends_with('.')
        && !part.contains("..")
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn names_of_the_table_and_of_the_hub_are_understood() {
        assert!(matches!(Name::parse("smollm2-135m"), Ok(Name::Known(known)) if known.name == "smollm2-135m"));
        let Ok(Name::Hub { owner, name }) = Name::parse("hf:Qwen/Qwen2.5-0.5B_x") else { panic!("a name of the Hub") };
        assert_eq!((owner.as_str(), name.as_str()), ("Qwen", "Qwen2.5-0.5B_x"));
    }

    #[test]
    fn a_name_can_not_climb_out_of_its_folder() {
        let long = format!("hf:a/{}", "b".repeat(97));
        for name in [
            "hf:../x",
            "hf:a/..",
            "hf:a/b/c",
            "hf:a",
            "hf:/a",
            "hf:a/",
            "hf:a/b\\c",
            "hf:a/.b",
            "hf:a/-b",
            "hf:a/b..c",
            "hf:a/b.",
            "hf:a/b c",
            "hf:a/b?c",
            "hf:a/b%2e",
            "hf:ä/b",
            "hf:a/b\n",
            "hf:",
            &long,
        ] {
            let error = Name::parse(name).expect_err(name).to_string();
            assert!(error.starts_with(name) && error.contains("hf:owner/name"), "{error}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        for name in ["gpt5", "", "../smollm2-135m", "SMOLLM2-135M"] {
            let error = Name::parse(name).expect_err(name).to_string();
            assert!(error.contains("no such model; known are smollm2-135m (") && !error.contains('\n'), "{error}");
        }
    }
}
