//! JSON documents that are kept whole. A value takes some hundred bytes of memory for two of text, so that their number is counted, by a
//! walk over the text, before anything is parsed. It refuses documents of more than [`MAX_VALUES`].

use serde::de::{DeserializeOwned, Error};

/// Most values of a document; the largest configurations have some thousand.
pub const MAX_VALUES: usize = 1 << 15;

/// Parses a document.
///
/// # Errors
/// When it is malformed, of another shape, or has too many values.
pub fn document<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    let values = values(bytes);
    if values > MAX_VALUES {
        return Err(Error::custom(format_args!("{values} values, where at most {MAX_VALUES} are read")));
    }
    serde_json::from_slice(bytes)
}

/// At least as many as there are values: one for each opening bracket and comma outside of strings, and one more.
fn values(bytes: &[u8]) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' | b',' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn values_are_counted_outside_of_strings_alone() {
        assert_eq!(values(br#"{"a,[{\\\"": [1, 2, {"b": "]"}]}"#), 6);
        assert_eq!(values(b""), 1);
    }

    #[test]
    fn a_document_of_too_many_values_is_refused_before_it_is_parsed() {
        let list = |n: usize| format!("[{}0]", "0,".repeat(n - 2));
        assert!(document::<Value>(list(MAX_VALUES).as_bytes()).is_ok());
        let line = document::<Value>(list(MAX_VALUES + 1).as_bytes()).unwrap_err().to_string();
        assert_eq!(line, "32769 values, where at most 32768 are read");
    }
}
