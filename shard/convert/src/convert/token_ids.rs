//! The ids of tokens in the small files of a model.

use serde_json::{Map, Value, json};

use super::vocabulary::KeptIds;

/// Keys that hold ids beside those that end with `_token_id`.
const LISTS: [&str; 2] = ["suppress_tokens", "begin_suppress_tokens"];

/// Files with the vocabulary in a form that `tokenizer.json` replaces.
pub(super) const REPLACED: [&str; 7] = [
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "tokenizer.model",
    "tekken.json",
    "spiece.model",
];

fn has_ids(key: &str) -> bool {
    key.ends_with("_token_id") || LISTS.contains(&key)
}

/// Returns the ids that a `config.json` or `generation_config.json` names.
pub(super) fn named(config: &Map<String, Value>) -> Vec<u64> {
    let values = config.iter().filter(|(key, _)| has_ids(key) && !LISTS.contains(&key.as_str()));
    let ids = values.flat_map(|(_, value)| match value {
        Value::Array(ids) => ids.iter().filter_map(Value::as_u64).collect(),
        one => one.as_u64().into_iter().collect::<Vec<_>>(),
    });
    ids.collect()
}

/// Replaces the ids in `config` by the new ones. Ids without a token are removed.
pub(super) fn replace(config: &mut Map<String, Value>, kept: &KeptIds) {
    let new = |id: &Value| id.as_u64().and_then(|id| kept.new_id(id)).map(|id| json!(id));
    for (_, value) in config.iter_mut().filter(|(key, _)| has_ids(key)) {
        match value {
            Value::Array(ids) => *ids = ids.iter().filter_map(new).collect(),
            one => *one = new(one).unwrap_or(Value::Null),
        }
    }
}

/// Replaces the ids in `config`, the content of a `tokenizer_config.json`.
pub(super) fn replace_in_tokenizer_config(config: &mut Map<String, Value>, kept: &KeptIds) {
    if let Some(Value::Object(added)) = config.get_mut("added_tokens_decoder") {
        let old = std::mem::take(added);
        let new = |id: &str| id.parse().ok().and_then(|id| kept.new_id(id));
        added.extend(old.into_iter().filter_map(|(id, token)| Some((new(&id)?.to_string(), token))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn ids_are_replaced_wherever_they_are_named() {
        let kept = KeptIds { stored: vec![1, 4, 7], unwanted: 0 };
        let mut config = object(json!({
            "bos_token_id": 4, "eos_token_id": [7, 1], "pad_token_id": -1, "sep_token_id": null, "hidden_size": 4,
            "suppress_tokens": [1, 2],
        }));
        assert_eq!(named(&config), [4, 7, 1]);
        replace(&mut config, &kept);
        let want = json!({
            "bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": null, "sep_token_id": null, "hidden_size": 4,
            "suppress_tokens": [0],
        });
        assert_eq!(Value::Object(config), want);
        let mut config = object(json!({"added_tokens_decoder": {"7": {"content": "x"}, "3": {}}}));
        replace_in_tokenizer_config(&mut config, &kept);
        assert_eq!(Value::Object(config), json!({"added_tokens_decoder": {"2": {"content": "x"}}}));
    }
}
