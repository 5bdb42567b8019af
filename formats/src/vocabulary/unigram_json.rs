//! The `tokenizer.json` of a unigram model, and the tokenizer that model files have for it.
//!
//! Published encoders have such a tokenizer (XLM-RoBERTa and the models in its layout). Files keep
//! the table that normalizes characters as SentencePiece has it, and the tokenizers library reads
//! this table too. So a file becomes the `tokenizer.json` that transformers has for the model, and
//! both give the same tokens.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::file_tokenizer::Refusal;
use super::{CharsMap, PieceKind, SpecialTokenIds, TokenizerData, VocabularyError, pieces};

/// The character that stands for a space.
const SPACE: &str = "\u{2581}";

/// The expression of several spaces, which become one.
const SPACES: &str = " {2,}";

impl TokenizerData {
    /// Returns the `tokenizer.json` of a unigram model (`t5`).
    ///
    /// Text gets the end token if the file does not say whether it does, as in llama.cpp. A pair of
    /// texts has the separator between them if the file names one.
    ///
    /// # Errors
    /// [`VocabularyError`] names the first token, or the part of the table of characters, on which
    /// encoding cannot rely.
    pub fn unigram_json(&self) -> Result<String, VocabularyError> {
        let unknown = self.check_unigram()?;
        let bytes = self.kinds.contains(&PieceKind::Byte);
        let used = self.kinds.iter().rposition(|kind| *kind != PieceKind::Unused).map_or(0, |last| last + 1);
        let count = if self.kinds.is_empty() { self.tokens.len() } else { used };
        let score = |id: usize| f64::from(self.scores.get(id).copied().unwrap_or(0.0));
        let vocab = self.tokens[..count].iter().enumerate().map(|(id, text)| json!([text, score(id)]));
        let model = json!({
            "type": "Unigram", "unk_id": unknown, "byte_fallback": bytes, "vocab": vocab.collect::<Vec<_>>(),
        });
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.added_json(),
            "normalizer": self.normalizer_json(),
            "pre_tokenizer": self.pre_tokenizer_json(),
            "post_processor": self.template_json()?,
            "decoder": self.decoder_json(bytes),
            "model": model,
        });
        Ok(tokenizer.to_string())
    }

    /// Checks the properties on which encoding relies. Returns the id of the token for unknown
    /// text.
    fn check_unigram(&self) -> Result<Option<usize>, VocabularyError> {
        pieces::check_count(self.tokens.len())?;
        let mut known = std::collections::HashMap::with_capacity(self.tokens.len());
        for (id, text) in self.tokens.iter().enumerate() {
            pieces::check_length(id, text.len())?;
            if let Some(first) = known.insert(text, id) {
                return Err(VocabularyError::Duplicate { token: text.clone(), first, second: id });
            }
        }
        if let Some(table) = CharsMap::read(&self.precompiled_charsmap)? {
            table.check()?;
        }
        let of_kind = self.kinds.iter().position(|kind| *kind == PieceKind::Unknown);
        let unknown = of_kind.or(self.special.unknown.map(|id| id as usize));
        match unknown.is_some() || self.kinds.contains(&PieceKind::Byte) {
            true => Ok(unknown),
            false => Err(VocabularyError::NoUnknown),
        }
    }

    /// Returns the tokens that are looked for in a text before it is divided.
    fn added_json(&self) -> Vec<Value> {
        let token = |(id, (text, kind)): (usize, (&String, &PieceKind))| {
            let special = matches!(kind, PieceKind::Control | PieceKind::Unknown);
            (special || *kind == PieceKind::UserDefined).then(|| {
                json!({
                    "id": id, "content": text, "single_word": false, "rstrip": false, "normalized": false,
                    // The mask takes the space before it, as in every model that has one.
                    "lstrip": self.special.mask == Some(id as u32),
                    "special": special,
                })
            })
        };
        self.tokens.iter().zip(&self.kinds).enumerate().filter_map(token).collect()
    }

    /// Returns whether texts are words with a space before each, as in XLM-RoBERTa.
    fn has_words(&self) -> bool {
        self.add_space_prefix.unwrap_or(true) && self.trims_spaces()
    }

    fn trims_spaces(&self) -> bool {
        self.remove_extra_whitespaces.unwrap_or(false)
    }

    fn normalizer_json(&self) -> Value {
        let mut steps = Vec::new();
        if !self.precompiled_charsmap.is_empty() {
            let table = STANDARD.encode(&self.precompiled_charsmap);
            steps.push(json!({"type": "Precompiled", "precompiled_charsmap": table}));
        }
        if self.trims_spaces() && !self.has_words() {
            steps.push(json!({"type": "Strip", "strip_left": true, "strip_right": true}));
            steps.push(json!({"type": "Replace", "pattern": {"Regex": SPACES}, "content": " "}));
        }
        match steps.len() {
            0 => Value::Null,
            1 => steps.remove(0),
            _ => json!({"type": "Sequence", "normalizers": steps}),
        }
    }

    /// Returns the step that writes spaces as a character, with or without one before a text.
    fn metaspace(&self) -> Value {
        let scheme = if self.add_space_prefix.unwrap_or(true) { "always" } else { "never" };
        json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true})
    }

    fn pre_tokenizer_json(&self) -> Value {
        match self.has_words() {
            true => {
                json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, self.metaspace()]})
            }
            false => self.metaspace(),
        }
    }

    fn decoder_json(&self, bytes: bool) -> Value {
        if !bytes {
            return self.metaspace();
        }
        let mut steps = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.add_space_prefix.unwrap_or(true) {
            steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        json!({"type": "Sequence", "decoders": steps})
    }

    /// Returns the tokens around a text, and around and between a pair of them.
    fn template_json(&self) -> Result<Value, VocabularyError> {
        let SpecialTokenIds { bos, eos, separator, .. } = self.special;
        let begin = bos.filter(|_| self.add_bos.unwrap_or(false));
        let end = eos.filter(|_| self.add_eos.unwrap_or(true));
        let between = separator.filter(|_| self.add_sep.unwrap_or(true));
        let mut named = Map::new();
        for (role, id) in [("begin", begin), ("end", end), ("separator", between)] {
            pieces::check_id(role, id, self.tokens.len())?;
            if let Some(id) = id {
                let text = &self.tokens[id as usize];
                named.insert(text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}));
            }
        }
        let token = |id: Option<u32>| {
            id.map(|id| json!({"SpecialToken": {"id": self.tokens[id as usize], "type_id": 0}}))
        };
        let text = |id: &str| Some(json!({"Sequence": {"id": id, "type_id": 0}}));
        let single = [token(begin), text("A"), token(end)];
        let pair = [token(begin), text("A"), token(end), token(between), text("B"), token(end)];
        let listed = |steps: &[Option<Value>]| steps.iter().flatten().cloned().collect::<Vec<_>>();
        Ok(json!({
            "type": "TemplateProcessing", "single": listed(&single), "pair": listed(&pair), "special_tokens": named,
        }))
    }
}

/// The changes to a text before it is divided, as a `tokenizer.json` of a unigram model says them.
#[derive(Debug, Default, PartialEq)]
struct Changes {
    table: Vec<u8>,
    /// Whether spaces at both ends are removed, and runs of spaces become one.
    trims: bool,
    /// Whether a text begins with a space.
    prefix: bool,
}

impl Changes {
    fn read(json: &Value) -> Result<Self, Refusal> {
        let (mut changes, mut strips) = (Changes::default(), false);
        for step in steps(json.get("normalizer"), "normalizers") {
            let spaces = || step.pointer("/pattern/Regex").and_then(Value::as_str) == Some(SPACES);
            match kind(step) {
                "Precompiled" if changes == Changes::default() => changes.table = table(step)?,
                // It comes before the step that makes one space of several.
                "Strip" => strips = true,
                "Replace" if spaces() => changes.trims = true,
                other => {
                    return Err(format!("its normalizer has the step {other}, which files have no key for"));
                }
            }
        }
        for step in steps(json.get("pre_tokenizer"), "pretokenizers") {
            match kind(step) {
                "WhitespaceSplit" => changes.trims = true,
                "Metaspace" => changes.prefix = has_prefix(step)?,
                other => {
                    return Err(format!(
                        "its pre-tokenizer has the step {other}, which files have no key for"
                    ));
                }
            }
        }
        match strips && !changes.trims {
            true => Err("its normalizer removes spaces at the ends of a text only".to_owned()),
            false => Ok(changes),
        }
    }
}

/// Returns the steps of a part of a `tokenizer.json`: those in its list, or the part itself.
fn steps<'a>(part: Option<&'a Value>, list: &str) -> Vec<&'a Value> {
    match part {
        None | Some(Value::Null) => Vec::new(),
        Some(part) => match part.get(list).and_then(Value::as_array) {
            Some(steps) => steps.iter().collect(),
            None => vec![part],
        },
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn table(step: &Value) -> Result<Vec<u8>, Refusal> {
    let text = step.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or_default();
    STANDARD.decode(text).map_err(|_| "its table of characters is not Base64".to_owned())
}

/// Returns whether a step that writes spaces as a character puts one before a text.
fn has_prefix(step: &Value) -> Result<bool, Refusal> {
    if step.get("replacement").and_then(Value::as_str) != Some(SPACE) {
        return Err("its pre-tokenizer writes spaces as another character than \u{2581}".to_owned());
    }
    match step.get("prepend_scheme").and_then(Value::as_str) {
        Some("never") => Ok(false),
        Some(_) => Ok(true),
        // Older files have a truth value.
        None => Ok(step.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true)),
    }
}

/// Reads the `tokenizer.json` of a unigram model.
pub(super) fn read(json: &Value, rows: usize) -> Result<TokenizerData, Refusal> {
    let changes = Changes::read(json)?;
    let model = json.get("model").unwrap_or(&Value::Null);
    let vocab = model.get("vocab").and_then(Value::as_array).ok_or("it has no vocabulary")?;
    let unknown = model.get("unk_id").and_then(Value::as_u64).map(|id| id as usize);
    let has_bytes = model.get("byte_fallback").and_then(Value::as_bool) == Some(true);
    let mut data = TokenizerData { model: "t5".to_owned(), ..TokenizerData::unused(rows) };
    data.scores = vec![0.0; rows];
    for (id, piece) in vocab.iter().enumerate() {
        let text = piece.get(0).and_then(Value::as_str).ok_or("a token has no text")?;
        let score = piece.get(1).and_then(Value::as_f64).ok_or("a token has no score")?;
        let kind = match () {
            () if unknown == Some(id) => PieceKind::Unknown,
            () if has_bytes && super::is_byte_name(text) => PieceKind::Byte,
            () => PieceKind::Normal,
        };
        data.set(id, text, kind)?;
        data.scores[id] = score as f32;
    }
    let unknown_text = unknown.and_then(|id| data.tokens.get(id).cloned());
    data.set_added(json, unknown_text.as_deref())?;
    data.special.unknown = unknown.map(|id| id as u32);
    data.precompiled_charsmap = changes.table;
    data.remove_extra_whitespaces = Some(changes.trims);
    data.add_space_prefix = Some(changes.prefix);
    read_template(json, &mut data)?;
    data.special.padding = data.id("<pad>");
    data.special.mask = data.id("<mask>");
    Ok(data)
}

/// Adds the tokens that are put around a text, and between two.
fn read_template(json: &Value, data: &mut TokenizerData) -> Result<(), Refusal> {
    let found = json.pointer("/post_processor/type").and_then(Value::as_str);
    if let Some(other) = found.filter(|kind| *kind != "TemplateProcessing") {
        return Err(format!("its post-processor is a {other}, which files have no key for"));
    }
    let around = |list: &str| -> Vec<Option<u32>> {
        let steps = json.pointer(&format!("/post_processor/{list}")).and_then(Value::as_array);
        let token = |step: &Value| step.pointer("/SpecialToken/id")?.as_str().and_then(|text| data.id(text));
        steps.into_iter().flatten().map(token).collect()
    };
    let (single, pair) = (around("single"), around("pair"));
    let (begin, end) = match single[..] {
        [] | [None] => (None, None),
        [Some(begin), None] => (Some(begin), None),
        [None, Some(end)] => (None, Some(end)),
        [Some(begin), None, Some(end)] => (Some(begin), Some(end)),
        _ => return Err("it puts several tokens before or after a text".to_owned()),
    };
    // The tokens of the first text end with the end token, too.
    let after = usize::from(begin.is_some()) + 1 + usize::from(end.is_some());
    data.special.separator = pair.get(after).copied().flatten();
    data.add_sep = Some(data.special.separator.is_some());
    data.special.separator = data.special.separator.or(end);
    (data.add_bos, data.add_eos) = (Some(begin.is_some()), Some(end.is_some()));
    data.special.bos = begin.or_else(|| data.id("<s>"));
    data.special.eos = end.or_else(|| data.id("</s>"));
    data.special.cls = begin;
    Ok(())
}
