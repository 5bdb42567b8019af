//! A `tokenizer.json` for models of BERT that have `vocab.txt` only, a token in each line, or the
//! tokenizer of a GGUF file.

use millrace_formats::vocabulary::{PieceKind, TokenizerData, VocabularyError};
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
    let config = &facts.tokenizer_config;
    let named = |key: &str, usual: &str| -> String {
        let found = config.get(key);
        let text = found.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
        text.unwrap_or(usual).to_owned()
    };
    let flag = |key: &str, usual: bool| config.get(key).and_then(Value::as_bool).unwrap_or(usual);
    let normalizer = json!({
        "type": "BertNormalizer",
        "clean_text": true,
        "handle_chinese_chars": flag("tokenize_chinese_chars", true),
        // If absent, accents are removed together with capital letters.
        "strip_accents": config.get("strip_accents").cloned().unwrap_or_default(),
        "lowercase": flag("do_lower_case", true),
    });
    written(&tokens, &SPECIAL.map(|(key, usual)| named(key, usual)), &normalizer)
}

/// The mark of the begin of a word in GGUF files. Tokens within a word have no mark.
const WORD: char = '\u{2581}';

/// Returns the `tokenizer.json` of the tokenizer of a GGUF file.
///
/// A GGUF file does not say whether capital letters become small ones. They do if no token has one.
///
/// # Errors
/// If the file has too many tokens, or lacks a special token that every text needs.
pub(super) fn tokenizer_json_of_file(data: &TokenizerData) -> Result<Vec<u8>, VocabularyError> {
    let special = &data.special;
    let ids = [
        special.padding,
        special.unknown,
        special.cls.or(special.bos),
        special.separator.or(special.eos),
        special.mask,
    ];
    if data.tokens.len() > MAX_TOKENS {
        let reason = format!("it has {} tokens, more than the limit of {MAX_TOKENS}", data.tokens.len());
        return Err(VocabularyError::Unsupported(reason));
    }
    let is_special = |index: usize| {
        data.kinds.get(index) == Some(&PieceKind::Control)
            || ids.iter().flatten().any(|&id| id as usize == index)
    };
    let texts = data.tokens.iter().enumerate().map(|(index, token)| match token.strip_prefix(WORD) {
        Some(word) => word.to_owned(),
        None if is_special(index) => token.clone(),
        None => format!("##{token}"),
    });
    let texts: Vec<String> = texts.collect();
    let tokens: Vec<&str> = texts.iter().map(String::as_str).collect();
    let has_capitals = texts.iter().enumerate().any(|(index, text)| {
        !is_special(index) && !text.starts_with('[') && text.contains(char::is_uppercase)
    });
    let text = |id: Option<u32>| id.and_then(|id| texts.get(id as usize).cloned());
    let mut special = SPECIAL.map(|(_, usual)| usual.to_owned());
    for (special, id) in special.iter_mut().zip(ids) {
        if let Some(text) = text(id) {
            *special = text;
        }
    }
    let normalizer = json!({
        "type": "BertNormalizer",
        "clean_text": true,
        "handle_chinese_chars": true,
        "strip_accents": null,
        "lowercase": !has_capitals,
    });
    written(&tokens, &special, &normalizer)
}

/// Returns the `tokenizer.json` with these tokens, whose special tokens are in the order of
/// [`SPECIAL`].
fn written(tokens: &[&str], special: &[String; 5], normalizer: &Value) -> Result<Vec<u8>, VocabularyError> {
    // Of two equal tokens the last one counts, as in transformers.
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    let [_, unknown, begin, end, _] = special;
    if let Some(missing) = [unknown, begin, end].into_iter().find(|token| !vocab.contains_key(*token)) {
        let reason = format!("it has no token {missing}; tokenizer_config.json may name another one");
        return Err(VocabularyError::Unsupported(reason));
    }
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
        "normalizer": normalizer,
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
    use crate::assets::{ModelFiles, TextAssets};
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

    /// Tokens of [`VOCABULARY`] as the converter of llama.cpp stores them.
    fn stored(extra: &str) -> TokenizerData {
        let mut lines: Vec<&str> = std::str::from_utf8(VOCABULARY).unwrap().lines().collect();
        lines.retain(|line| !line.contains('U') || line.starts_with('['));
        lines.extend(extra.lines());
        let is_control = |line: &&str| line.starts_with('[');
        let phantom = |line: &&str| match line.strip_prefix("##") {
            _ if is_control(line) => (*line).to_owned(),
            Some(rest) => rest.to_owned(),
            None => format!("\u{2581}{line}"),
        };
        let kind = |line: &&str| if is_control(line) { PieceKind::Control } else { PieceKind::Normal };
        let mut data = TokenizerData { model: "bert".into(), ..TokenizerData::default() };
        data.tokens = lines.iter().map(phantom).collect();
        data.kinds = lines.iter().map(kind).collect();
        (data.special.unknown, data.special.cls, data.special.separator) = (Some(1), Some(2), Some(3));
        data
    }

    #[test]
    fn tokens_of_a_gguf_file_are_those_of_its_vocabulary() {
        let tokens = |data: TokenizerData, text: &str| {
            let assets = TextAssets::read(&ModelFiles::in_memory(&[]), Some(data)).unwrap();
            let tokenizer = Tokenizer::new(&assets).unwrap();
            let ids = tokenizer.encode_now(text, SpecialTokens::Add).unwrap().ids;
            let texts = ids.iter().map(|&id| tokenizer.vocabulary_text(id).unwrap());
            texts.collect::<Vec<_>>().join(" ")
        };
        let small = "UNwant\u{e9}d,running xyz";
        assert_eq!(tokens(stored(""), small), "[CLS] un ##want ##ed , running [UNK] [SEP]");
        // A token with a capital letter says that they are kept.
        assert_eq!(tokens(stored("UN"), small), "[CLS] [UNK] , running [UNK] [SEP]");
        assert_eq!(tokens(stored("UN"), "UN unwanted"), "[CLS] UN un ##want ##ed [SEP]");
        let mut without = stored("");
        (without.special.separator, without.tokens[3]) = (None, "\u{2581}x".into());
        let refused = TextAssets::read(&ModelFiles::in_memory(&[]), Some(without)).unwrap_err().to_string();
        assert!(refused.contains("it has no token [SEP]"), "{refused}");
    }

    #[test]
    fn a_vocabulary_without_the_special_tokens_is_refused() {
        let refused = |bytes: &[u8]| TextAssets::from_files(&[("vocab.txt", bytes)]).unwrap_err().to_string();
        let missing = refused(b"[UNK]\n[CLS]\na\n");
        assert!(missing.contains("vocab.txt") && missing.contains("it has no token [SEP]"), "{missing}");
        assert!(refused(b"\xff\xfe").contains("it is not UTF-8"));
    }
}
