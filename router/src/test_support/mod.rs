//! What tests share: a tokenizer of single bytes and an engine that says what it is told to.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod engine;

use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::json;

pub(crate) use engine::{FakeEngine, Script};

use crate::assets::Assets;
use crate::text::Tokenizer;

/// Begins every raw prompt.
pub(crate) const BOS: u32 = 256;
/// Ends a generation; the text says `</s>`.
pub(crate) const EOS: u32 = 257;

/// A template that writes `user: text\n` and ends with `assistant: `.
pub(crate) const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{% if m.role == 'bad' %}\
{{ raise_exception('Unknown role bad') }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
{% if add_generation_prompt %}assistant: {% endif %}";

/// One token per byte (its id is the byte), `<s>` in front of a prompt and `</s>` as its end.
pub(crate) fn assets() -> Assets {
    assets_with(&[])
}

/// The same with more special tokens, numbered from 258.
pub(crate) fn assets_with(marks: &[&str]) -> Assets {
    // GPT-2's alphabet: printable bytes are themselves, the others follow from U+0100.
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
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Assets {
        tokenizer: serde_json::to_vec(&tokenizer).unwrap(),
        chat_template: Some(TEMPLATE.into()),
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        eos_ids: vec![EOS],
        ..Assets::default()
    }
}

/// The tokenizer of [`assets`].
pub(crate) fn tokenizer() -> Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::new(&assets(), 2).unwrap()).clone()
}

/// A folder of the test data that does not belong to the repository, for tests that are ignored unless they are asked for.
pub(crate) fn test_data(folder: &str) -> PathBuf {
    let root = std::env::var_os("MILLRACE_TEST_DATA");
    PathBuf::from(root.expect("MILLRACE_TEST_DATA names the folder of the test data")).join(folder)
}

/// The tokenizer of stories260k, a SentencePiece model.
pub(crate) fn published_tokenizer() -> Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    let load = || Tokenizer::new(&Assets::from_dir(&test_data("stories260k")).unwrap(), 2).unwrap();
    TOKENIZER.get_or_init(load).clone()
}
