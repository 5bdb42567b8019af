//! The keys of the tokenizer.

use millrace_formats::GgufValue;
use millrace_formats::vocabulary::TokenizerData;
use serde_json::Value;

use super::super::error::ConvertError;
use super::super::model::Model;
use super::super::tokenizer::{self, ModelTokenizer};
use super::described::Keys;

type List = Vec<(String, GgufValue)>;

/// Adds the tokenizer: that of the file, or that of `tokenizer.json`, which is also added as it is.
pub(super) fn add(
    model: &Model<'_>,
    rows: usize,
    keys: &mut Keys,
    notes: &mut Vec<String>,
) -> Result<(), ConvertError> {
    let ModelTokenizer { json, data, refusal } = tokenizer::of(model, Some(rows))?;
    if let Some(text) = json {
        keys.list.push(("tokenizer.huggingface.json".into(), GgufValue::Text(text)));
    }
    let Some(mut data) = data else {
        let reason = refusal.map(|refusal| format!(": {refusal}")).unwrap_or_default();
        notes.push(format!(
            "other programs need a tokenizer in the file, and this one cannot be written{reason}"
        ));
        return Ok(());
    };
    if data.model == "gpt2" && data.pre.is_none() {
        notes.push(
            "GGUF has no name for the pattern of this tokenizer: Millrace reads the file, but llama.cpp may not".to_owned(),
        );
    }
    if data.model == "llama" {
        // Gemma 4 has merges, and others scores in their place.
        match keys.is_of("gemma4") && !data.merges.is_empty() {
            true => (data.model, data.scores) = ("gemma4".to_owned(), Vec::new()),
            false => data.merges.clear(),
        }
    }
    add_tokenizer(model, data, &mut keys.list);
    Ok(())
}

fn add_tokenizer(model: &Model<'_>, data: TokenizerData, keys: &mut List) {
    let mut add = |key: &str, value: GgufValue| keys.push((format!("tokenizer.{key}"), value));
    add("ggml.model", GgufValue::Text(data.model));
    if let Some(pre) = data.pre {
        add("ggml.pre", GgufValue::Text(pre));
    }
    add("ggml.tokens", GgufValue::Texts(data.tokens));
    if !data.scores.is_empty() {
        add("ggml.scores", GgufValue::F32s(data.scores));
    }
    if !data.kinds.is_empty() {
        add("ggml.token_type", GgufValue::I32s(data.kinds.iter().map(|&kind| kind as i32).collect()));
    }
    if !data.merges.is_empty() {
        add("ggml.merges", GgufValue::Texts(data.merges));
    }
    let of_config = |key: &str| match model.value(key) {
        Some(Value::Array(ids)) => ids.first().and_then(Value::as_u64),
        Some(id) => id.as_u64(),
        None => None,
    };
    let id = |found: Option<u32>, key: &str| found.map(u64::from).or_else(|| of_config(key));
    for (key, id) in [
        ("bos", id(data.special.bos, "bos_token_id")),
        ("eos", id(data.special.eos, "eos_token_id")),
        ("padding", id(data.special.padding, "pad_token_id")),
        ("unknown", data.special.unknown.map(u64::from)),
        ("cls", data.special.cls.map(u64::from)),
        // The format spells it so.
        ("seperator", data.special.separator.map(u64::from)),
        ("mask", data.special.mask.map(u64::from)),
    ] {
        if let Some(id) = id.and_then(|id| u32::try_from(id).ok()) {
            add(&format!("ggml.{key}_token_id"), GgufValue::U32(id));
        }
    }
    for (key, flag) in [
        ("add_bos_token", data.add_bos),
        ("add_eos_token", data.add_eos),
        ("add_sep_token", data.add_sep),
        ("add_space_prefix", data.add_space_prefix),
        ("remove_extra_whitespaces", data.remove_extra_whitespaces),
    ] {
        if let Some(flag) = flag {
            add(&format!("ggml.{key}"), GgufValue::Bool(flag));
        }
    }
    if !data.precompiled_charsmap.is_empty() {
        add("ggml.precompiled_charsmap", GgufValue::Bytes(data.precompiled_charsmap));
    }
    if let Some(template) = data.chat_template {
        add("chat_template", GgufValue::Text(template));
    }
}
