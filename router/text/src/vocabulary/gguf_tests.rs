//! Tests against the ids that llama.cpp published for its vocabularies.

use millrace_formats::Source;

use crate::assets::{TextAssets, Vocabulary};
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
