//! Tests against the ids that llama.cpp published for its vocabularies, and those of transformers.

use std::path::Path;

use millrace_formats::Source;
use serde_json::Value;

use crate::assets::{ModelFiles, TextAssets, Vocabulary};
use crate::test_support::test_data;
use crate::{SpecialTokens, Tokenizer};

#[test]
#[ignore = "needs the published vocabularies of MILLRACE_TEST_DATA"]
fn published_vocabularies_give_the_published_ids() {
    for name in ["ggml-vocab-llama-spm.gguf", "ggml-vocab-gpt-2.gguf"] {
        let path = |end: &str| test_data("tokenizers").join(format!("{name}{end}"));
        let file = Source::File(path("")).tokenizer_data().unwrap().unwrap();
        let assets =
            TextAssets { tokenizer: Vocabulary::from_gguf(file).unwrap().into(), ..TextAssets::default() };
        let tokenizer = Tokenizer::new(&assets).unwrap();
        let (texts, ids) =
            (std::fs::read_to_string(path(".inp")).unwrap(), std::fs::read_to_string(path(".out")).unwrap());
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let ids: Vec<&str> = ids.split('\n').collect();
        assert_eq!(ids.len(), 47);
        for (text, ids) in texts.iter().zip(&ids) {
            let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let encoded = tokenizer.encode_now(text, SpecialTokens::Omit).unwrap();
            assert_eq!(encoded.ids, expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn unigram_files_give_the_ids_of_transformers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden-gguf/tokenizers");
    let text = std::fs::read_to_string(golden.join("xlm_roberta.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let file = Source::File(golden.join("xlm_roberta.gguf")).tokenizer_data().unwrap();
    let assets = TextAssets::read(&ModelFiles::in_memory(&[]), file).unwrap();
    let tokenizer = Tokenizer::new(&assets).unwrap();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let cases = recorded["texts"].as_array().unwrap();
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let encoded = tokenizer.encode_now(text, SpecialTokens::Add).unwrap();
        assert_eq!(encoded.ids, ids(&case["ids"]), "{text:?}");
    }
    assert!(cases.len() > 100, "{}", cases.len());
    for pair in recorded["pairs"].as_array().unwrap() {
        let plain = |index: usize| {
            let text = pair["texts"][index].as_str().unwrap();
            tokenizer.encode_now(text, SpecialTokens::Omit).unwrap().ids
        };
        let joined = tokenizer.pair_affixes().unwrap().join(&plain(0), &plain(1));
        assert_eq!(joined.ids, ids(&pair["ids"]), "{pair}");
        assert_eq!(joined.second_type_start, None);
    }
}
