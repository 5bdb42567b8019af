//! Numbers that JSON does not have, and that Python writes all the same.

use std::borrow::Cow;

/// The numbers as Python's `json` writes them, the longest first, and as version 5 of transformers
/// does.
const NUMBERS: [(&[u8], &[u8]); 3] = [
    (b"-Infinity", br#"{"__float__":"-Infinity"}"#),
    (b"Infinity", br#"{"__float__":"Infinity"}"#),
    (b"NaN", br#"{"__float__":"NaN"}"#),
];

/// Returns a text in JSON whose `Infinity`, `-Infinity` and `NaN` outside of strings are replaced
/// by objects, as in `{"__float__": "Infinity"}`. Configurations of Mamba-2 may contain such
/// numbers. A text without them is returned as it is.
pub fn without_special_numbers(text: &[u8]) -> Cow<'_, [u8]> {
    let mut replaced: Vec<u8> = Vec::new();
    // The bytes from `kept` on have not been copied.
    let (mut at, mut kept, mut in_string) = (0, 0, false);
    while at < text.len() {
        match text[at] {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'I' | b'N' if !in_string => {
                if let Some((number, object)) =
                    NUMBERS.iter().find(|(number, _)| text[at..].starts_with(number))
                {
                    replaced.extend(&text[kept..at]);
                    replaced.extend(*object);
                    at += number.len();
                    kept = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    replaced.extend(&text[kept..]);
    Cow::Owned(replaced)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn special_numbers_become_objects() {
        let text = br#"{"limits": [0.0, Infinity, -Infinity, -1], "nan": NaN, "text": "Infinity \" NaN"}"#;
        let parsed: Value = serde_json::from_slice(&without_special_numbers(text)).unwrap();
        let special = |name: &str| json!({"__float__": name});
        let limits = json!([0.0, special("Infinity"), special("-Infinity"), -1]);
        assert_eq!(parsed, json!({"limits": limits, "nan": special("NaN"), "text": "Infinity \" NaN"}));
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in [&b""[..], br#"{"a": "NaN", "b": [-1, null]}"#, b"\"\\", b"In", b"\"Infinity"] {
            assert!(matches!(without_special_numbers(text), Cow::Borrowed(same) if same == text));
        }
    }
}
