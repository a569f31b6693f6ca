//! Numbers that some modules have for themselves: PEFT's `rank_pattern` and `alpha_pattern`. PEFT reads its keys as regular expressions that
//! end a module's path; here they are names or paths, which is what people write. Anything with a meaning of its own in an expression is
//! refused.

use serde_json::{Map, Value};

/// Values by the end of a module's path; the first that fits counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Patterns<T>(pub Vec<(String, T)>);

impl<T> Default for Patterns<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone> Patterns<T> {
    /// The value of the module at `path`, where it has one for itself.
    pub fn of(&self, path: &str) -> Option<T> {
        self.0.iter().find(|(name, _)| fits(name, path)).map(|(_, value)| value.clone())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A key as a name: `^` and `$` at its ends say nothing that is not so anyway, and `\.` is a dot. `None` for any other expression.
    pub(super) fn plain(key: &str) -> Option<String> {
        let key = key.strip_prefix('^').unwrap_or(key);
        let key = key.strip_suffix('$').unwrap_or(key).replace("\\.", ".");
        let fine = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        (!key.is_empty() && key.chars().all(fine)).then_some(key)
    }

    pub(super) fn to_json(&self, value: impl Fn(&T) -> Value) -> Value {
        Value::Object(self.0.iter().map(|(name, of)| (name.clone(), value(of))).collect::<Map<_, _>>())
    }
}

/// Whether `path` is `name` or ends in it.
fn fits(name: &str, path: &str) -> bool {
    path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_whole_words_at_the_end_of_a_path_and_the_first_counts() {
        let patterns =
            Patterns(vec![("layers.1.self_attn.q_proj".into(), 3), ("q_proj".into(), 4), ("proj".into(), 5)]);
        assert_eq!(patterns.of("model.layers.1.self_attn.q_proj"), Some(3));
        assert_eq!(patterns.of("model.layers.11.self_attn.q_proj"), Some(4));
        assert_eq!(patterns.of("model.layers.1.self_attn.k_proj"), None);
        assert_eq!(patterns.of("proj"), Some(5));
    }

    #[test]
    fn an_expression_is_told_from_a_name() {
        let plain = Patterns::<usize>::plain;
        assert_eq!(plain("^model.layers.0.mlp$").as_deref(), Some("model.layers.0.mlp"));
        assert_eq!(plain(r"self_attn\.q_proj").as_deref(), Some("self_attn.q_proj"));
        for expression in ["", "^", "q|k", "layers.[01]", r"layers.\d+", "q.*"] {
            assert_eq!(plain(expression), None, "{expression}");
        }
    }
}
