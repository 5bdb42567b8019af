//! Tests against SentencePiece and tiktoken, whose results `integration-tests/oracle` recorded.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::assets::TextAssets;
use crate::thread_time::thread_time;
use crate::{SpecialTokens, Tokenizer};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden/tokenizers")
}

/// Returns the recorded tokenizers with their names and cases.
fn recorded() -> Vec<(String, Tokenizer, Vec<Value>)> {
    let folders = std::fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path());
    let load = |folder: PathBuf| {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let assets = TextAssets::from_dir(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
        let tokenizer = Tokenizer::new(&assets).unwrap_or_else(|error| panic!("{name}: {error}"));
        let cases: Vec<Value> =
            serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
        (name, tokenizer, cases)
    };
    folders.map(load).collect()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = tokenizer.detokenizer(true, false);
    let text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text + &detokenizer.finish()
}

#[test]
fn ids_and_texts_are_those_of_the_reference() {
    let mut compared = 0;
    for (name, tokenizer, cases) in recorded() {
        let mut wrong = Vec::new();
        for case in &cases {
            let text = case["text"].as_str().unwrap();
            let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            let encoded = tokenizer.encode_now(text, SpecialTokens::Omit).unwrap();
            assert!(
                encoded.offsets.iter().all(|&(from, to)| from <= to && to as usize <= text.len()),
                "{text:?}"
            );
            if encoded.ids != expected {
                wrong.push(format!("{text:?}: {:?}, expected {expected:?}", encoded.ids));
                continue;
            }
            compared += 1;
            if let Some(decoded) = case["decoded"].as_str() {
                assert_eq!(streamed(&tokenizer, &expected), decoded, "{name}: {text:?}");
                assert_eq!(tokenizer.library_decode(&expected, true), decoded, "{name}: {text:?}");
            }
        }
        assert!(wrong.is_empty(), "{name}: {} of {} differ: {}", wrong.len(), cases.len(), wrong.join("\n"));
    }
    assert!(compared > 1500, "{compared}");
}

/// Gemma's `tokenizer.json` has the same tokens and merges as a GGUF file of the kind `gemma4`.
#[test]
fn characters_are_merged_as_the_library_does() {
    use std::str::FromStr;

    use millrace_formats::vocabulary::{PieceKind, SpecialTokenIds, TokenizerData};
    use serde_json::json;

    use crate::assets::Vocabulary;

    let control = ["<pad>", "<eos>", "<bos>"].map(|text| (text.to_owned(), PieceKind::Control));
    let unknown = [("<unk>".to_owned(), PieceKind::Unknown)];
    let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), PieceKind::Byte));
    let normal = ["▁", "a", "b", "c", "\n", "é", "ab", "▁ab", "▁▁", "\n\n", "abc", "▁abc"];
    let normal = normal.map(|text| (text.to_owned(), PieceKind::Normal));
    let defined = [("<table>".to_owned(), PieceKind::UserDefined)];
    let all: Vec<(String, PieceKind)> =
        control.into_iter().chain(unknown).chain(bytes).chain(normal).chain(defined).collect();
    let merges = ["a b", "▁ ab", "▁ ▁", "\n \n", "ab c", "▁ab c"];
    let ids: serde_json::Map<String, Value> =
        all.iter().zip(0..).map(|((text, _), id)| (text.clone(), Value::from(id))).collect();
    let pairs: Vec<Vec<&str>> = merges.iter().map(|merge| merge.splitn(2, ' ').collect()).collect();
    let library = tokenizers::Tokenizer::from_str(
        &json!({
            "version": "1.0",
            "added_tokens": [{"id": ids["<table>"], "content": "<table>", "special": false, "normalized": false,
                              "single_word": false, "lstrip": false, "rstrip": false}],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                              "invert": false},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": ids,
                      "merges": pairs},
        })
        .to_string(),
    )
    .unwrap();
    let (tokens, kinds) = all.into_iter().unzip();
    let file = TokenizerData {
        model: "gemma4".into(),
        tokens,
        kinds,
        merges: merges.map(str::to_owned).into(),
        special: SpecialTokenIds { bos: Some(2), eos: Some(1), ..SpecialTokenIds::default() },
        ..TokenizerData::default()
    };
    let vocabulary = Vocabulary::from_gguf(file).unwrap();
    assert_eq!(vocabulary.prefix, [2], "prompts begin with the begin token");
    let tokenizer =
        Tokenizer::new(&TextAssets { tokenizer: vocabulary.into(), ..TextAssets::default() }).unwrap();
    for text in [
        "ab",
        " ab abc",
        "a\n\n\nb",
        "  c   ab",
        "é à €😀",
        "abé\n ab\n\n",
        "",
        "a<table>b <table>\n",
        "<0x41> ",
    ] {
        let expected = library.encode(text, false).unwrap();
        let encoded = tokenizer.encode_now(text, SpecialTokens::Omit).unwrap();
        assert_eq!(encoded.ids, expected.get_ids(), "{text:?}");
        assert_eq!(streamed(&tokenizer, &encoded.ids), text);
    }
}

/// Tests that loading is linear: a quadratic pass over this many tokens takes minutes.
#[test]
fn large_vocabularies_load_within_seconds() {
    use millrace_formats::vocabulary::{
        ByteVocabulary, Piece, PieceAlgorithm, PieceKind, PieceNormalization, PieceVocabulary,
    };

    use crate::assets::{SplitPattern, Vocabulary, VocabularyTokens};

    let letters = |mut number: usize| {
        let mut text = String::new();
        while number > 0 {
            text.push(char::from(b'a' + (number % 26) as u8));
            number /= 26;
        }
        text
    };
    let unknown = Piece { text: "<unk>".into(), score: 0.0, kind: PieceKind::Unknown };
    let texts = (1..260_000).map(|number| letters(number) + "z");
    let pieces =
        texts.enumerate().map(|(rank, text)| Piece { text, score: -(rank as f32), kind: PieceKind::Normal });
    let pieces: Vec<Piece> = std::iter::once(unknown).chain(pieces).collect();
    let bytes =
        (0..=255u8).map(|byte| vec![byte]).chain((26..150_000).map(|number| letters(number).into_bytes()));
    let tokens = [
        VocabularyTokens::Pieces {
            vocabulary: PieceVocabulary {
                pieces,
                algorithm: PieceAlgorithm::Bpe,
                normalization: PieceNormalization::default(),
                byte_fallback: false,
                bos: None,
                eos: None,
            },
            first_id: 0,
            substitutions: Vec::new(),
        },
        VocabularyTokens::Ranked {
            vocabulary: ByteVocabulary { tokens: bytes.collect(), first_id: 0 },
            pattern: SplitPattern::Named("qwen2"),
            nfc: true,
        },
    ];
    for tokens in tokens {
        let vocabulary = Vocabulary { tokens, added: Vec::new(), prefix: Vec::new(), suffix: Vec::new() };
        let assets = TextAssets { tokenizer: vocabulary.into(), ..TextAssets::default() };
        let since = thread_time();
        let tokenizer = Tokenizer::new(&assets).unwrap();
        let took = thread_time() - since;
        eprintln!("{} tokens in {took:?}", tokenizer.size());
        assert!(took.as_secs() < 20, "{took:?}");
    }
}
