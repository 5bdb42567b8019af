//! The keys of a file: values of Python, as texts.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::Error;
use crate::fault::FileFault;

/// The longest value that is read as something else than text.
const MAX_VALUE: usize = 1 << 16;

/// The keys and their values as texts.
#[derive(Debug, Default)]
pub(super) struct Keys(BTreeMap<String, String>);

impl Keys {
    pub(super) fn add(&mut self, key: String, value: String) {
        self.0.insert(key, value);
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub(super) fn is_true(&self, key: &str) -> bool {
        matches!(self.get(key), Some("1" | "True" | "true"))
    }

    pub(super) fn count(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }

    /// Returns the configuration. A key with a point is one of an object.
    pub(super) fn config(&self, path: &str, format: &'static str) -> Result<Map<String, Value>, Error> {
        let mut config = Map::new();
        for (key, text) in &self.0 {
            let value = python(text);
            if value.is_null() {
                continue;
            }
            match key.split_once('.') {
                None => {
                    config.insert(key.clone(), value);
                }
                Some((object, inner)) => {
                    let object = config.entry(object).or_insert_with(|| Map::new().into());
                    // The whole object, as text of Python, may come first.
                    if !object.is_object() {
                        *object = Map::new().into();
                    }
                    if let Some(object) = object.as_object_mut() {
                        object.insert(inner.to_owned(), value);
                    }
                }
            }
        }
        if !config.contains_key("model_type") {
            let fault = FileFault::MissingKey("model_type".to_owned());
            return Err(Error::ModelFile { file: path.to_owned(), format, fault });
        }
        Ok(config)
    }
}

/// Returns the value of which Python made this text with `str`. A text that is no number, constant
/// or list of such values stays a text.
fn python(text: &str) -> Value {
    match text {
        "None" => return Value::Null,
        "True" => return true.into(),
        "False" => return false.into(),
        _ if text.len() > MAX_VALUE => return text.into(),
        _ => {}
    }
    if let Ok(number @ Value::Number(_)) = serde_json::from_str(text) {
        return number;
    }
    if text.starts_with(['[', '{']) {
        let parsed: Result<Value, _> = serde_json::from_str(&as_json(text));
        return parsed.unwrap_or_else(|_| text.into());
    }
    text.into()
}

/// Replaces the quotes and the constants of Python outside of texts.
fn as_json(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    let mut word = String::new();
    let mut quote = None;
    for c in text.chars() {
        if c.is_ascii_alphabetic() && quote.is_none() {
            word.push(c);
            continue;
        }
        json += match word.as_str() {
            "None" => "null",
            "True" => "true",
            "False" => "false",
            other => other,
        };
        word.clear();
        match (quote, c) {
            (None, '\'' | '"') => (quote = Some(c), json.push('"')).1,
            (Some(open), c) if c == open => (quote = None, json.push('"')).1,
            (Some(_), '"') => json.push_str("\\\""),
            (_, c) => json.push(c),
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_of_python_become_values() {
        for (text, want) in [
            ("12", json!(12)),
            ("1e-05", json!(1e-5)),
            ("True", json!(true)),
            ("None", json!(null)),
            ("silu", json!("silu")),
            ("[1, 2]", json!([1, 2])),
            ("['LlamaForCausalLM']", json!(["LlamaForCausalLM"])),
            ("{'type': 'a\"b', 'on': True, 'off': None}", json!({"type": "a\"b", "on": true, "off": null})),
            ("[unfinished", json!("[unfinished")),
        ] {
            assert_eq!(python(text), want, "{text}");
        }
    }

    #[test]
    fn keys_with_points_are_objects() {
        let mut keys = Keys::default();
        for (key, value) in
            [("model_type", "llama"), ("rope_scaling", "x"), ("rope_scaling.factor", "2.0"), ("a", "None")]
        {
            keys.add(key.to_owned(), value.to_owned());
        }
        let want = json!({"model_type": "llama", "rope_scaling": {"factor": 2.0}});
        assert_eq!(Value::from(keys.config("x", "FastLLM").unwrap()), want);
        let missing = Keys::default().config("x", "FastLLM").unwrap_err().to_string();
        assert!(missing.contains("the key model_type is missing"), "{missing}");
    }
}
