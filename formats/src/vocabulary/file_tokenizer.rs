//! A tokenizer as model files store it that have no `tokenizer.json`.

use serde_json::Value;

use super::PieceKind;

/// The reason why a model file cannot have a tokenizer.
pub(super) type Refusal = String;

/// The tokenizer of a model file, as it is stored. Building a tokenizer from it is not the task of
/// this crate.
///
/// The lists with one entry per token have the length of [`tokens`](Self::tokens), or are empty if
/// the file does not have them. Token ids are indices into that list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenizerData {
    /// The kind: `llama` (sentencepiece BPE), `gpt2` (byte-level BPE), `t5` (unigram), `bert`
    /// (WordPiece), or another one.
    pub model: String,
    /// The name of the rules that split a text before it is encoded, for byte-level BPE.
    pub pre: Option<String>,
    /// The text of each token.
    pub tokens: Vec<String>,
    /// The score of each token, a finite number.
    pub scores: Vec<f32>,
    /// The kind of each token.
    pub kinds: Vec<PieceKind>,
    /// The merges of byte-level BPE in their order: two texts with a space between them.
    pub merges: Vec<String>,
    /// The ids of special tokens.
    pub special: SpecialTokenIds,
    /// Whether the begin token comes before each text.
    pub add_bos: Option<bool>,
    /// Whether the end token comes after each text.
    pub add_eos: Option<bool>,
    /// Whether the separator comes between two texts.
    pub add_sep: Option<bool>,
    /// Whether a space is added before each text.
    pub add_space_prefix: Option<bool>,
    /// Whether successive spaces become one.
    pub remove_extra_whitespaces: Option<bool>,
    /// The compiled map of characters of sentencepiece. It is empty if the file does not have one.
    pub precompiled_charsmap: Vec<u8>,
    /// The chat template.
    pub chat_template: Option<String>,
    /// Further chat templates with their names.
    pub named_templates: Vec<(String, String)>,
    /// The whole `tokenizer.json`, which few files have.
    pub huggingface_json: Option<String>,
}

/// The ids of special tokens. All are less than the number of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialTokenIds {
    /// Begin of a text.
    pub bos: Option<u32>,
    /// End of a text.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message.
    pub eom: Option<u32>,
    /// Text that the vocabulary does not cover.
    pub unknown: Option<u32>,
    /// Separator of two texts.
    pub separator: Option<u32>,
    /// Padding.
    pub padding: Option<u32>,
    /// A masked token.
    pub mask: Option<u32>,
    /// The token whose output classifies a text.
    pub cls: Option<u32>,
}

impl TokenizerData {
    /// Returns the tokens of the rows of an embedding, of which none is known yet.
    pub(super) fn unused(rows: usize) -> Self {
        TokenizerData {
            tokens: (0..rows).map(|id| format!("[PAD{id}]")).collect(),
            kinds: vec![PieceKind::Unused; rows],
            ..TokenizerData::default()
        }
    }

    /// Sets the text and the kind of the token of a row.
    pub(super) fn set(&mut self, id: usize, text: &str, kind: PieceKind) -> Result<(), Refusal> {
        let rows = self.tokens.len();
        let (Some(token), Some(known)) = (self.tokens.get_mut(id), self.kinds.get_mut(id)) else {
            return Err(format!("its token {text:?} has the id {id}, and the embedding has {rows} rows"));
        };
        text.clone_into(token);
        *known = kind;
        Ok(())
    }

    /// Sets the tokens that are looked for in a text before it is divided. `unknown` is the text of
    /// the one for text that the vocabulary does not cover.
    pub(super) fn set_added(&mut self, json: &Value, unknown: Option<&str>) -> Result<(), Refusal> {
        for added in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
            let text = added.get("content").and_then(Value::as_str).ok_or("an added token has no text")?;
            let kind = match added.get("special").and_then(Value::as_bool) {
                _ if unknown == Some(text) => PieceKind::Unknown,
                Some(true) => PieceKind::Control,
                _ => PieceKind::UserDefined,
            };
            self.set(id_of(added.get("id"))?, text, kind)?;
        }
        Ok(())
    }

    /// Returns the id of the token with this text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.tokens.iter().position(|token| token == text).map(|id| id as u32)
    }
}

/// Returns the id in a `tokenizer.json`.
pub(super) fn id_of(value: Option<&Value>) -> Result<usize, Refusal> {
    let id = value.and_then(Value::as_u64).and_then(|id| usize::try_from(id).ok());
    id.ok_or_else(|| "a token has no id".to_owned())
}
