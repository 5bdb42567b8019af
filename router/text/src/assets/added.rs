//! The tokens that text never becomes, of models whose files do not list them.

use millrace_formats::vocabulary::AddedVocabularyToken;

/// Special tokens that follow the last token of a vocabulary in this order.
pub(super) fn following(first: u32, texts: &[String]) -> Vec<AddedVocabularyToken> {
    let tokens = (first..).zip(texts);
    tokens.map(|(id, text)| AddedVocabularyToken { id, text: text.clone(), special: true }).collect()
}

/// Returns ChatGLM2's and ChatGLM3's special tokens.
pub(super) fn chatglm3() -> Vec<String> {
    let names = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"];
    let roles = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"];
    names.iter().chain(&roles).map(|&text| text.to_owned()).collect()
}

/// Returns GLM-4's special tokens.
pub(super) fn glm4() -> Vec<String> {
    let texts = [
        "<|endoftext|>",
        "[MASK]",
        "[gMASK]",
        "[sMASK]",
        "<sop>",
        "<eop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
    ];
    texts.map(str::to_owned).into()
}

/// Returns the special tokens of Qwen's first version.
pub(super) fn qwen() -> Vec<String> {
    let names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
    names.into_iter().chain((0..205).map(|index| format!("<|extra_{index}|>"))).collect()
}

/// Returns Llama 3's special tokens.
pub(super) fn llama3() -> Vec<String> {
    let mut texts = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|reserved_special_token_2|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    ]
    .map(str::to_owned)
    .to_vec();
    let reserved = 256 - texts.len();
    texts.extend((3..3 + reserved).map(|index| format!("<|reserved_special_token_{index}|>")));
    texts
}

/// Returns Kimi's special tokens without names. `tokenizer_config.json` names the others.
pub(super) fn kimi() -> Vec<String> {
    (0..256).map(|index| format!("<|reserved_token_{index}|>")).collect()
}
