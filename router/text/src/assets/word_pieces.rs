//! A `tokenizer.json` for models of BERT that have `vocab.txt` only: a token in each line.

use millrace_formats::vocabulary::VocabularyError;
use serde_json::{Map, Value, json};

use super::facts::ModelFacts;

/// The name of the file.
pub(super) const FILE: &str = "vocab.txt";

/// The largest number of tokens.
const MAX_TOKENS: usize = 1 << 21;

/// The special tokens: the key of `tokenizer_config.json`, and the text if it is absent.
const SPECIAL: [(&str, &str); 5] = [
    ("pad_token", "[PAD]"),
    ("unk_token", "[UNK]"),
    ("cls_token", "[CLS]"),
    ("sep_token", "[SEP]"),
    ("mask_token", "[MASK]"),
];

/// Returns the `tokenizer.json` that transformers makes of the file and `tokenizer_config.json`.
///
/// # Errors
/// If the file is no text, has too many tokens, or lacks a special token that every text needs.
pub(super) fn tokenizer_json(bytes: &[u8], facts: &ModelFacts) -> Result<Vec<u8>, VocabularyError> {
    let refused = |reason: String| Err(VocabularyError::Unsupported(reason));
    let Ok(text) = std::str::from_utf8(bytes) else {
        return refused("it is not UTF-8; it must have one token in each line".to_owned());
    };
    let tokens: Vec<&str> = text.lines().map(|line| line.trim_end_matches('\r')).collect();
    if tokens.len() > MAX_TOKENS {
        return refused(format!("it has {} lines, more than the limit of {MAX_TOKENS}", tokens.len()));
    }
    // Of two lines with the same token the last one counts, as in transformers.
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    let config = &facts.tokenizer_config;
    let named = |key: &str, usual: &str| -> String {
        let found = config.get(key);
        let text = found.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
        text.unwrap_or(usual).to_owned()
    };
    let special = SPECIAL.map(|(key, usual)| named(key, usual));
    let [_, unknown, begin, end, _] = &special;
    if let Some(missing) = [unknown, begin, end].into_iter().find(|token| !vocab.contains_key(*token)) {
        return refused(format!("it has no token {missing}; tokenizer_config.json may name another one"));
    }
    let flag = |key: &str, usual: bool| config.get(key).and_then(Value::as_bool).unwrap_or(usual);
    let added: Vec<Value> = special
        .iter()
        .filter_map(|token| {
            Some(json!({
                "id": vocab.get(token)?, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            }))
        })
        .collect();
    let one = |token: &String| json!({"SpecialToken": {"id": token, "type_id": 0}});
    let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    let of = |token: &String| json!({"id": token, "ids": [vocab[token]], "tokens": [token]});
    let second = json!({"SpecialToken": {"id": end, "type_id": 1}});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars", true),
            // If absent, accents are removed together with capital letters.
            "strip_accents": config.get("strip_accents").cloned().unwrap_or_default(),
            "lowercase": flag("do_lower_case", true),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [one(begin), text("A", 0), one(end)],
            "pair": [one(begin), text("A", 0), one(end), text("B", 1), second],
            "special_tokens": {begin: of(begin), end: of(end)},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    });
    Ok(tokenizer.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::assets::TextAssets;
    use crate::{SpecialTokens, Tokenizer};

    const VOCABULARY: &[u8] =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##want\n##ed\nrunning\n,\ncafe\nca\u{301}fe\n\
        \u{6f22}\n\u{5b57}\nUn\ncaf\u{e9}\n"
            .as_bytes();

    fn tokens(config: &Value, text: &str) -> Vec<String> {
        let config = config.to_string();
        let files = [("vocab.txt", VOCABULARY), ("tokenizer_config.json", config.as_bytes())];
        let tokenizer = Tokenizer::new(&TextAssets::from_files(&files).unwrap()).unwrap();
        let ids = tokenizer.encode_now(text, SpecialTokens::Add).unwrap().ids;
        ids.iter().map(|&id| tokenizer.vocabulary_text(id).unwrap()).collect()
    }

    /// transformers' `BertTokenizer` gives the expected tokens for the same files.
    #[test]
    fn texts_are_divided_as_the_configuration_says() {
        for (config, text, want) in [
            (json!({}), "UNwant\u{e9}d,running", "[CLS] un ##want ##ed , running [SEP]"),
            (json!({"do_lower_case": false}), "Unwanted", "[CLS] Un ##want ##ed [SEP]"),
            (json!({}), "caf\u{e9}", "[CLS] cafe [SEP]"),
            (json!({"strip_accents": false}), "Caf\u{e9}", "[CLS] caf\u{e9} [SEP]"),
            (json!({"do_lower_case": false}), "caf\u{e9}", "[CLS] caf\u{e9} [SEP]"),
            (json!({"do_lower_case": false, "strip_accents": true}), "caf\u{e9}", "[CLS] cafe [SEP]"),
            (json!({}), "\u{6f22}\u{5b57}", "[CLS] \u{6f22} \u{5b57} [SEP]"),
            (json!({"tokenize_chinese_chars": false}), "\u{6f22}\u{5b57}", "[CLS] [UNK] [SEP]"),
            (json!({}), "xyz [MASK] un", "[CLS] [UNK] [MASK] un [SEP]"),
        ] {
            assert_eq!(tokens(&config, text).join(" "), want, "{config} {text}");
        }
    }

    #[test]
    fn a_vocabulary_without_the_special_tokens_is_refused() {
        let refused = |bytes: &[u8]| TextAssets::from_files(&[("vocab.txt", bytes)]).unwrap_err().to_string();
        let missing = refused(b"[UNK]\n[CLS]\na\n");
        assert!(missing.contains("vocab.txt") && missing.contains("it has no token [SEP]"), "{missing}");
        assert!(refused(b"\xff\xfe").contains("it is not UTF-8"));
    }
}
