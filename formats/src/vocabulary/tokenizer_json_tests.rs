//! Tokenizers that are read from `tokenizer.json`, and written as one.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::Source;

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration-tests/golden-gguf/tokenizers").join(name)
}

/// Returns the `tokenizer.json` that transformers has, and the tokenizer of the GGUF file.
fn xlm_roberta() -> (Value, TokenizerData) {
    let text = std::fs::read_to_string(golden("xlm_roberta.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let file = Source::File(golden("xlm_roberta.gguf")).tokenizer_data().unwrap().unwrap();
    (recorded["tokenizer"].clone(), file)
}

#[test]
fn unigram_tokenizers_become_what_the_package_gguf_writes() {
    let (json, mut file) = xlm_roberta();
    let rows = file.tokens.len();
    let made = TokenizerData::of_json(&json, rows).unwrap();
    // Other converters have no keys for these, and another score and name for tokens without text.
    assert_eq!((made.add_sep, made.special.cls), (Some(true), Some(0)));
    (file.add_sep, file.special.cls, file.pre) = (made.add_sep, made.special.cls, None);
    file.scores[rows - 3..].fill(0.0);
    assert_eq!(made, file);
}

#[test]
fn unigram_tokenizers_become_what_transformers_has() {
    let (json, file) = xlm_roberta();
    let made: Value = serde_json::from_str(&file.unigram_json().unwrap()).unwrap();
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        assert_eq!(made[part], json[part], "{part}");
    }
    for part in ["/model/unk_id", "/model/vocab", "/post_processor/single", "/post_processor/pair"] {
        assert_eq!(made.pointer(part), json.pointer(part), "{part}");
    }
    let ids = |json: &Value| -> Vec<Value> {
        json["added_tokens"].as_array().unwrap().iter().map(|token| token["content"].clone()).collect()
    };
    assert_eq!(ids(&made), ids(&json));
}

/// A unigram model with tokens for bytes, whose texts do not begin with a space.
fn with_bytes() -> TokenizerData {
    let texts = ["<unk>", "</s>", "a", "b", "<sym>"].map(|text| (text.to_owned(), PieceKind::Normal));
    let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), PieceKind::Byte));
    let (tokens, mut kinds): (Vec<_>, Vec<_>) = texts.into_iter().chain(bytes).unzip();
    (kinds[0], kinds[1], kinds[4]) = (PieceKind::Unknown, PieceKind::Control, PieceKind::UserDefined);
    TokenizerData {
        model: "t5".into(),
        scores: (0..tokens.len()).map(|id| -(id as f32)).collect(),
        tokens,
        kinds,
        special: SpecialTokenIds {
            eos: Some(1),
            unknown: Some(0),
            separator: Some(1),
            ..SpecialTokenIds::default()
        },
        add_bos: Some(false),
        add_eos: Some(true),
        add_sep: Some(false),
        add_space_prefix: Some(false),
        remove_extra_whitespaces: Some(true),
        ..TokenizerData::default()
    }
}

#[test]
fn unigram_tokenizers_come_back_as_they_were() {
    for (prefix, trims) in [(false, true), (true, true), (true, false), (false, false)] {
        let data = TokenizerData {
            add_space_prefix: Some(prefix),
            remove_extra_whitespaces: Some(trims),
            ..with_bytes()
        };
        let json: Value = serde_json::from_str(&data.unigram_json().unwrap()).unwrap();
        assert_eq!(TokenizerData::of_json(&json, data.tokens.len()).unwrap(), data, "{prefix} {trims}");
    }
}

#[test]
fn unigram_files_that_cannot_be_relied_on_are_refused() {
    let refusal = |change: fn(&mut TokenizerData)| {
        let mut data = with_bytes();
        change(&mut data);
        data.unigram_json().unwrap_err().to_string()
    };
    for (refusal, text) in [
        (refusal(|data| data.tokens[2] = "b".into()), "two ids, 2 and 3"),
        (refusal(|data| data.tokens[2] = String::new()), "token 2 is empty"),
        (refusal(|data| data.special.eos = Some(999)), "end token has the id 999"),
        (
            refusal(|data| {
                data.kinds.fill(PieceKind::Normal);
                data.special.unknown = None;
            }),
            "no token for unknown text",
        ),
        // A table of one unit, whose children are outside of it.
        (refusal(|data| data.precompiled_charsmap = vec![4, 0, 0, 0, 0, 4, 0, 0]), "a place outside of it"),
    ] {
        assert!(refusal.contains(text), "{refusal}, expected {text}");
    }
}

#[test]
fn tables_of_characters_have_their_texts() {
    // `a` has a value: the root's children begin at 256, and those of `a` at 0.
    let table = |value: u32| {
        let mut units = vec![0u32; 512];
        units[0] = 256 << 10;
        units[256 ^ usize::from(b'a')] = u32::from(b'a') | 1 << 8 | (256 ^ u32::from(b'a') ^ 1) << 10;
        units[1] = 1 << 31 | value;
        let units: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let bytes = [&(units.len() as u32).to_le_bytes()[..], &units, "é\0".as_bytes()].concat();
        CharsMap::read(&bytes).unwrap().unwrap()
    };
    assert_eq!(table(0).longest("abc"), Some((1, "é")));
    table(0).check().unwrap();
    for place in [1, 4] {
        let error = table(place).check().unwrap_err().to_string();
        assert!(error.contains("a place outside of its texts"), "{place}: {error}");
    }
}

#[test]
fn tokenizers_without_keys_in_files_are_refused_by_name() {
    let (json, file) = xlm_roberta();
    let refusal = |pointer: &str, value: Value| {
        let mut json = json.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        TokenizerData::of_json(&json, file.tokens.len()).unwrap_err()
    };
    for (pointer, value, text) in [
        ("/model/type", json!("WordLevel"), "\"WordLevel\""),
        ("/normalizer", json!({"type": "NFKC"}), "the step NFKC"),
        ("/pre_tokenizer", json!({"type": "BertPreTokenizer"}), "the step BertPreTokenizer"),
        ("/pre_tokenizer/pretokenizers/1/replacement", json!("_"), "another character"),
        ("/post_processor", json!({"type": "RobertaProcessing"}), "RobertaProcessing"),
        (
            "/post_processor/single",
            json!([{"SpecialToken": {"id": "<s>"}}, {"SpecialToken": {"id": "<s>"}}]),
            "several tokens",
        ),
        ("/model/vocab/4", json!(["x"]), "no score"),
    ] {
        let refusal = refusal(pointer, value);
        assert!(refusal.contains(text), "{refusal}, expected {text}");
    }
    let mut strips = json.clone();
    strips["normalizer"] = json!({"type": "Strip", "strip_left": true, "strip_right": true});
    strips["pre_tokenizer"] = json["pre_tokenizer"]["pretokenizers"][1].clone();
    let strips = TokenizerData::of_json(&strips, file.tokens.len()).unwrap_err();
    assert!(strips.contains("at the ends of a text only"), "{strips}");
    let rows = TokenizerData::of_json(&json, 20).unwrap_err();
    assert!(rows.contains("and the embedding has 20 rows"), "{rows}");
}

fn byte_level(change: fn(&mut Value)) -> TokenizerData {
    let mut json = json!({
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split_expressions("llama-bpe").unwrap()[0]},
             "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]},
        "model": {"type": "BPE", "ignore_merges": true, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    });
    change(&mut json);
    TokenizerData::of_json(&json, 3).unwrap()
}

#[test]
fn patterns_have_names_if_all_of_the_tokenizer_is_known() {
    let pre = |change: fn(&mut Value)| byte_level(change).pre;
    assert_eq!(pre(|_| {}).as_deref(), Some("llama-bpe"));
    assert_eq!(pre(|json| json["normalizer"] = Value::Null).as_deref(), Some("llama-bpe"));
    // The pattern has other names if merges count for words that are a token.
    assert_eq!(pre(|json| json["model"]["ignore_merges"] = json!(false)).as_deref(), Some("dbrx"));
    assert_eq!(pre(|json| json["normalizer"] = json!({"type": "Lowercase"})), None);
    assert_eq!(pre(|json| json["pre_tokenizer"]["pretokenizers"][0]["invert"] = json!(true)), None);
}
