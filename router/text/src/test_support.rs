//! Test doubles for this crate and the ones above it: the files and tokenizers of test models, and
//! the inputs of the fuzzer that run as tests.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::json;

use crate::Tokenizer;
use crate::assets::TextAssets;

/// The token at the beginning of every raw prompt.
pub const BOS: u32 = 256;
/// The token that ends a generation. Its text is `</s>`.
pub const EOS: u32 = 257;

/// A template that writes `user: text\n` and ends with `assistant: `.
pub const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{% if m.role == 'bad' %}\
{{ raise_exception('Unknown role bad') }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
{% if add_generation_prompt %}assistant: {% endif %}";

/// Returns the files of a model with one token per byte, whose id is the byte, and with `<s>` and
/// `</s>`.
pub fn assets() -> TextAssets {
    assets_with(&[])
}

/// Returns the same files with additional special tokens, numbered from 258.
pub fn assets_with(marks: &[&str]) -> TextAssets {
    // In GPT-2's alphabet, printable bytes stand for themselves, and the others are the characters
    // from U+0100 on.
    let printable = |b: u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut vocab = serde_json::Map::new();
    let mut other = 0x100;
    for byte in 0..256u32 {
        let code = if printable(byte) {
            byte
        } else {
            other += 1;
            other - 1
        };
        vocab.insert(char::from_u32(code).unwrap().to_string(), byte.into());
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    };
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let added = ["<s>", "</s>"].iter().chain(marks).zip(BOS..).map(|(text, id)| special(id, text));
    let added: Vec<_> = added.collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
                {"SpecialToken": {"id": "</s>", "type_id": 1}},
            ],
            "special_tokens": {
                "<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]},
                "</s>": {"id": "</s>", "ids": [EOS], "tokens": ["</s>"]},
            },
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    TextAssets {
        tokenizer: serde_json::to_vec(&tokenizer).unwrap().into(),
        chat_template: Some(TEMPLATE.into()),
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        eos_ids: vec![EOS],
        ..TextAssets::default()
    }
}

/// Returns the tokenizer of [`assets`].
pub fn tokenizer() -> Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::new(&assets()).unwrap()).clone()
}

/// Returns a folder of the test data outside of the repository. Only tests that are ignored by
/// default use it.
pub fn test_data(folder: &str) -> PathBuf {
    let root = std::env::var_os("MILLRACE_TEST_DATA");
    PathBuf::from(root.expect("MILLRACE_TEST_DATA names the folder of the test data")).join(folder)
}

/// Returns the tokenizer of stories260k, a SentencePiece model.
pub fn published_tokenizer() -> Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    let load = || Tokenizer::new(&TextAssets::from_dir(&test_data("stories260k")).unwrap()).unwrap();
    TOKENIZER.get_or_init(load).clone()
}

/// Returns tokenizers of all kinds with their names: BPE of bytes and of SentencePiece, unigram
/// models and word pieces, with the vocabularies of `integration-tests` and of the demo model.
pub fn tokenizers_of_all_kinds() -> Vec<(String, Tokenizer)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let recorded = std::fs::read_dir(root.join("integration-tests/golden/tokenizers")).unwrap();
    let encoders = ["bert_classes", "xlm_roberta_classes", "modernbert_classes"];
    let encoders = encoders.map(|name| root.join("integration-tests/golden-encoders").join(name));
    let gemma = root.join("integration-tests/golden-embedders/embedding_gemma");
    let folders = recorded.map(|entry| entry.unwrap().path()).chain(encoders).chain([gemma]);
    let load = |folder: PathBuf| {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let assets = TextAssets::from_dir(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, Tokenizer::new(&assets).unwrap())
    };
    let bytes = ("bytes".to_owned(), tokenizer());
    folders.chain([root.join("models/demo")]).map(load).chain([bytes]).collect()
}

/// Returns the parts of a template's text that look like special tokens.
pub fn template_marks(source: &str) -> BTreeSet<String> {
    let mut marks = BTreeSet::new();
    for (open, close) in [('<', '>'), ('[', ']')] {
        for (at, _) in source.match_indices(open) {
            let Some(length) = source[at..].chars().take(40).position(|c| c == close) else { continue };
            let mark: String = source[at..].chars().take(length + 1).collect();
            let inner = &mark[open.len_utf8()..mark.len() - close.len_utf8()];
            let is_inner = |c: char| c.is_alphanumeric() || "_/|｜▁-:".contains(c);
            let is_name = open == '<' || inner.chars().all(|c| c.is_ascii_uppercase() || "_/".contains(c));
            if inner.len() > 1 && inner.chars().all(is_inner) && is_name {
                marks.insert(mark);
            }
        }
    }
    marks.retain(|mark| mark != "<s>" && mark != "</s>");
    marks
}

/// Returns the paths and the bytes of the inputs in `fuzz/seeds` for a target. There must be at
/// least one.
pub fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let all: Vec<_> = files.map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect();
    assert!(!all.is_empty(), "no inputs in {}", folder.display());
    all
}

/// Runs a target of the fuzzer on its inputs in `fuzz/seeds`.
pub fn replay_seeds(target: &str, run: fn(&[u8])) {
    for (path, seed) in seeds(target) {
        eprintln!("{path}");
        run(&seed);
    }
}

/// Keeps the paused clock of the current runtime from moving on by itself, until the returned
/// sender is dropped.
///
/// A paused clock of tokio jumps to the next timer when all tasks wait, even if they wait for
/// another thread or for a socket. It stands still while a blocking task runs. A test whose work
/// takes real time uses this so that no timeout is over before the work is done.
pub fn still_clock() -> std::sync::mpsc::Sender<()> {
    let (hold, held) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || {
        let _ = held.recv();
    });
    hold
}
