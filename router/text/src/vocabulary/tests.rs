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
