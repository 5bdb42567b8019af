//! Entry points for untrusted input, one function per kind of input. None of them may panic or
//! hang. `cargo xtask fuzz` runs them with libFuzzer. The inputs in `fuzz/seeds` also run as normal
//! tests.
#![allow(clippy::unwrap_used, reason = "the targets search for panics")]

use std::sync::OnceLock;

use serde_json::json;

use crate::assets::TextAssets;
use crate::{ChatTemplate, Conversation, SpecialTokens, Tokenizer, test_support};

/// Renders a chat template. The text after a NUL byte is the user's message.
pub fn templates(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (source, said) = text.split_once('\0').unwrap_or((&text, "hello"));
    let Ok(template) = ChatTemplate::new(source, None, Some("<s>".into()), Some("</s>".into()), 1) else {
        return;
    };
    let call =
        json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, null]}}});
    let messages = vec![
        json!({"role": "system", "content": said}),
        json!({"role": "user", "content": said}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "content": said, "tool_call_id": "1"}),
    ];
    let tools = Some(vec![json!({"type": "function", "function": {"name": said, "parameters": {}}})]);
    // The template may refuse the conversation.
    let _ = template.render_now(&Conversation {
        messages,
        tools,
        add_generation_prompt: true,
        ..Conversation::default()
    });
}

/// Converts a text to tokens and back.
pub fn tokenizers(data: &[u8]) {
    static TOKENIZERS: OnceLock<[Tokenizer; 2]> = OnceLock::new();
    let tokenizers = TOKENIZERS.get_or_init(|| {
        let demo = include_bytes!("../../../models/demo/tokenizer.json").to_vec();
        let demo = TextAssets { tokenizer: demo.into(), ..TextAssets::default() };
        [test_support::tokenizer(), Tokenizer::new(&demo).unwrap()]
    });
    let text = String::from_utf8_lossy(data);
    for tokenizer in tokenizers {
        let encoded = tokenizer.encode_now(&text, SpecialTokens::Omit).unwrap();
        let mut detokenizer = tokenizer.detokenizer(false, false);
        let mut back: String = encoded.ids.iter().map(|&id| detokenizer.push(id)).collect();
        back += &detokenizer.finish();
        assert_eq!(back, text, "{:?}", encoded.ids);
        assert!(encoded.offsets.iter().all(|&(from, to)| from <= to && to as usize <= text.len()));
    }
}

/// The files of vocabularies, and a configuration whose family has such a file.
const VOCABULARIES: [(&str, &str); 4] = [
    ("tokenizer.model", "llama"),
    ("ice_text.model", "chatglm"),
    ("tekken.json", "mistral"),
    ("tokenizer.bin", "llama"),
];

/// Reads a vocabulary and converts a text to tokens and back. The first byte selects the kind of
/// file.
pub fn vocabularies(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let (file, model_type) = VOCABULARIES[usize::from(kind) % VOCABULARIES.len()];
    let config = json!({"model_type": model_type}).to_string();
    let Ok(assets) = TextAssets::from_files(&[(file, bytes), ("config.json", config.as_bytes())]) else {
        return;
    };
    let Ok(tokenizer) = Tokenizer::new(&assets) else { return };
    for text in ["", " a  b\n", "Ａé😀<s>▁12"] {
        let encoded = tokenizer.encode_now(text, SpecialTokens::Add).unwrap();
        assert!(encoded.offsets.iter().all(|&(from, to)| from <= to && to as usize <= text.len()));
        let mut detokenizer = tokenizer.detokenizer(false, false);
        encoded.ids.iter().for_each(|&id| drop(detokenizer.push(id)));
    }
}

/// The JSON files from which a tokenizer and its templates are made.
const TEXT_FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.json",
];

/// Reads the JSON files that describe the text of a model, converts a text to tokens and back, and
/// builds the chat template. NUL bytes, which JSON cannot have, separate the files. An empty file
/// counts as absent.
pub fn text_files(data: &[u8]) {
    let files = data.splitn(TEXT_FILES.len(), |&byte| byte == 0);
    let files: Vec<_> = TEXT_FILES.into_iter().zip(files).filter(|(_, bytes)| !bytes.is_empty()).collect();
    let Ok(assets) = TextAssets::from_files(&files) else { return };
    if let Some(template) = &assets.chat_template {
        let (bos, eos) = (assets.bos_token.clone(), assets.eos_token.clone());
        let _ = ChatTemplate::new(template, assets.tool_template.as_deref(), bos, eos, 1);
    }
    let Ok(tokenizer) = Tokenizer::new(&assets) else { return };
    for text in ["", " a  b\n", "Ａé😀<s>▁12"] {
        // A tokenizer may have no token for a character, and none for unknown ones.
        let Ok(encoded) = tokenizer.encode_now(text, SpecialTokens::Add) else { continue };
        let mut detokenizer = tokenizer.detokenizer(false, false);
        encoded.ids.iter().for_each(|&id| drop(detokenizer.push(id)));
        drop(detokenizer.finish());
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::replay_seeds;

    #[test]
    fn template_seeds_pass() {
        replay_seeds("templates", super::templates);
    }

    #[test]
    fn tokenizer_seeds_pass() {
        replay_seeds("tokenizers", super::tokenizers);
    }

    #[test]
    fn vocabulary_seeds_pass() {
        replay_seeds("vocabularies", super::vocabularies);
    }

    #[test]
    fn text_file_seeds_pass() {
        replay_seeds("text_files", super::text_files);
    }
}
