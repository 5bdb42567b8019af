//! The tokenizer of a model: what it knows of its tokens, and how a text is encoded on this thread. `encode` does the same
//! away from the async threads.

use std::sync::{Arc, OnceLock};

use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, Token, Tokenizer as Library, normalizer,
};

use super::cuts::Cuts;
use super::detokenize::Detokenizer;
use super::encode::Lanes;
use super::guard::{ControlTokens, Rendered};
use super::pieces::{Pieces, Start};
use crate::assets::Assets;

/// Token ids are below this. Tables by id are made for all of them.
const MAX_IDS: u32 = 1 << 24;

/// What can go wrong between text and token ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// `tokenizer.json` cannot be read.
    #[error("tokenizer.json is not a tokenizer: {0}. Take the file from the model's repository again")]
    Tokenizer(String),
    /// The decoder in `tokenizer.json` is of an unknown kind.
    #[error(
        "the decoder in tokenizer.json is not supported: {0}. Supported are ByteLevel, Metaspace, and sequences of \
         Replace, ByteFallback, Fuse and Strip"
    )]
    Decoder(String),
    /// The text cannot be turned into tokens.
    #[error("tokenizer error {0}")]
    Encode(String),
}

/// Whether the tokens that begin (and end) a text are put around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// As the tokenizer's post-processor says; for raw prompts.
    Add,
    /// Not at all; for prompts from a chat template, which writes them itself.
    Omit,
}

/// A text as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// For each token, the bytes of the text that it covers; empty at 0 for tokens that were put around it. A text has
    /// less than 4 GiB.
    pub offsets: Vec<(u32, u32)>,
}

impl Encoded {
    /// Adds the tokens that follow.
    pub(super) fn append(&mut self, mut later: Encoded) {
        self.ids.append(&mut later.ids);
        self.offsets.append(&mut later.offsets);
    }

    fn outside(ids: &[u32]) -> Self {
        Encoded { ids: ids.to_vec(), offsets: vec![(0, 0); ids.len()] }
    }
}

/// Turns text into token ids and back. Clones are the same tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    library: Library,
    pieces: Pieces,
    longest: usize,
    /// For each id, whether it is a mark; looked at for every token.
    special: Vec<bool>,
    /// Put in front of raw prompts: the configuration asks for it and the post-processor does not do it.
    bos: Option<u32>,
    /// What the post-processor puts before and after a text; `None` if it does anything else.
    around: Option<(Vec<u32>, Vec<u32>)>,
    control: Arc<ControlTokens>,
    /// Those of them that the library looks for in the normalized text only.
    normalized: ControlTokens,
    /// Found out when the first long text comes.
    cuts: OnceLock<Cuts>,
    lanes: Lanes,
}

impl Tokenizer {
    /// Reads the tokenizer of a model; at most `workers` short and `workers` long texts are encoded at the same time.
    ///
    /// # Errors
    /// [`TextError`] names what is wrong with the file.
    pub fn new(assets: &Assets, workers: usize) -> Result<Self, TextError> {
        let mut library =
            Library::from_bytes(&assets.tokenizer).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        // Limits belong to the server, and a batch is never padded.
        library.with_truncation(None).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        library.with_padding(None);
        let added = library.get_added_tokens_decoder();
        let ids = library.get_vocab(true).into_values().chain(added.keys().copied());
        let highest = ids.max().unwrap_or(0);
        if highest >= MAX_IDS {
            return Err(TextError::Tokenizer(format!(
                "it has a token with the id {highest}, but ids must be below {MAX_IDS}"
            )));
        }
        let mut special = vec![false; highest as usize + 1];
        for (&id, _) in added.iter().filter(|(_, token)| token.special) {
            special.resize(special.len().max(id as usize + 1), false);
            special[id as usize] = true;
        }
        let source: serde_json::Value =
            serde_json::from_slice(&assets.tokenizer).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        let pieces = Pieces::new(source.get("decoder"), highest + 1, |id| library.id_to_token(id))?;
        let bos = bos_to_add(assets, &library)?;
        let around = around(&library);
        let named = [&assets.bos_token, &assets.eos_token].into_iter().flatten();
        let is_named =
            |id: u32, text: &String| assets.eos_ids.contains(&id) || named.clone().any(|name| name == text);
        let is_control =
            |id: u32, text: &String, special: bool| special || is_named(id, text) || is_control_shaped(text);
        let control: Vec<_> = added
            .iter()
            .filter(|(id, token)| is_control(**id, &token.content, token.special))
            .map(|(_, token)| token)
            .collect();
        let normalized = control.iter().filter(|token| token.normalized);
        let normalized = ControlTokens::new(normalized.map(|token| token.content.clone()));
        let control = ControlTokens::new(control.iter().map(|token| token.content.clone()));
        Ok(Tokenizer(Arc::new(Inner {
            longest: pieces.longest(),
            library,
            pieces,
            special,
            bos,
            around,
            control: Arc::new(control),
            normalized,
            cuts: OnceLock::new(),
            lanes: Lanes::new(workers),
        })))
    }

    /// Encodes on this thread.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub fn encode_now(&self, text: &str, specials: Specials) -> Result<Encoded, TextError> {
        let encoded = self.library_encode(text, specials == Specials::Add)?;
        Ok(self.with_bos(encoded, specials))
    }

    /// Encodes a prompt on this thread: its literal ranges as ordinary text, whatever they look like.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_now`].
    pub fn encode_rendered_now(&self, text: &Rendered, specials: Specials) -> Result<Encoded, TextError> {
        let encoded = self.encode_part(&text.text, &text.literal, specials == Specials::Add)?;
        Ok(self.with_bos(encoded, specials))
    }

    /// Encodes a text or a part of one; `add` puts the post-processor's tokens around it.
    pub(super) fn encode_part(
        &self,
        text: &str,
        literal: &[std::ops::Range<usize>],
        add: bool,
    ) -> Result<Encoded, TextError> {
        if literal.is_empty() {
            self.library_encode(text, add)
        } else {
            self.encode_literal(text, literal, add)
        }
    }

    fn library_encode(&self, text: &str, add: bool) -> Result<Encoded, TextError> {
        let encoding = self.0.library.encode(text, add).map_err(failed)?;
        compact(&encoding)
    }

    /// Does what the library does for a whole text, except that it takes no added token from the literal ranges.
    fn encode_literal(
        &self,
        text: &str,
        literal: &[std::ops::Range<usize>],
        add: bool,
    ) -> Result<Encoded, TextError> {
        let library = &self.0.library;
        let genuine = self.genuine(text, literal);
        let mut parts = PreTokenizedString::from(text);
        parts.split(|_, whole| Ok(split_at(&whole, &genuine))).map_err(failed)?;
        if let Some(normalizer) = library.get_normalizer() {
            parts.normalize(|part| normalizer.normalize(part)).map_err(failed)?;
        }
        if let Some(pre_tokenizer) = library.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts).map_err(failed)?;
        }
        parts.tokenize(|part| library.get_model().tokenize(part.get())).map_err(failed)?;
        let encoding = parts.into_encoding(None, 0, OffsetType::Byte).map_err(failed)?;
        compact(&library.post_process(encoding, None, add).map_err(failed)?)
    }

    /// The added tokens in a text with their byte ranges, but for those in the literal ranges.
    fn genuine(&self, text: &str, literal: &[std::ops::Range<usize>]) -> Vec<(u32, usize, usize)> {
        // The first of these ranges that ends after the token's beginning is the only one that can meet the token.
        let meets = |ranges: &[std::ops::Range<usize>], from: usize, to: usize| {
            let near = ranges.partition_point(|range| range.end <= from);
            ranges.get(near).is_some_and(|range| range.start < to)
        };
        // Without a normalizer this finds the added tokens and does nothing else.
        let vocabulary = self.0.library.get_added_vocabulary();
        let found = vocabulary.extract_and_normalize(None::<&NormalizerWrapper>, text);
        let found = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let genuine = found.iter().filter_map(|(_, (from, to), tokens)| {
            let id = tokens.as_ref()?.first()?.id;
            (!meets(literal, *from, *to)).then_some((id, *from, *to))
        });
        let mut genuine: Vec<_> = genuine.collect();
        // It misses those that the library looks for in the normalized text.
        let taken: Vec<_> = genuine.iter().map(|&(_, from, to)| from..to).collect();
        for std::ops::Range { start, end } in self.0.normalized.find(text) {
            if let Some(id) = self.token_id(&text[start..end])
                && !meets(literal, start, end)
                && !meets(&taken, start, end)
            {
                genuine.push((id, start, end));
            }
        }
        genuine.sort_unstable_by_key(|&(_, from, _)| from);
        genuine
    }

    fn with_bos(&self, mut encoded: Encoded, specials: Specials) -> Encoded {
        if let (Some(bos), Specials::Add) = (self.0.bos, specials) {
            encoded.ids.insert(0, bos);
            encoded.offsets.insert(0, (0, 0));
        }
        encoded
    }

    /// The tokens that are put before a text and after it; `None` if that cannot be told.
    pub(super) fn around(&self, specials: Specials) -> Option<(Encoded, Encoded)> {
        if specials == Specials::Omit {
            return Some((Encoded::default(), Encoded::default()));
        }
        let (before, after) = self.0.around.as_ref()?;
        let before = self.with_bos(Encoded::outside(before), specials);
        Some((before, Encoded::outside(after)))
    }

    /// Where long texts can be cut.
    pub(super) fn cuts(&self) -> Cuts {
        *self.0.cuts.get_or_init(|| {
            let tokens = (0..self.size()).map(|id| self.token_bytes(id));
            Cuts::of(|text| self.library_encode(text, false).ok(), tokens)
        })
    }

    pub(super) fn lanes(&self) -> &Lanes {
        &self.0.lanes
    }

    /// The special tokens that clients must not be able to write into messages.
    pub fn control_tokens(&self) -> &Arc<ControlTokens> {
        &self.0.control
    }

    /// A fresh detokenizer; one for a text that `continues` another keeps the space it starts with.
    pub fn detokenizer(&self, skip_special: bool, continues: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special, continues)
    }

    /// The bytes that a token adds to a text; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.pieces.get(id)
    }

    /// A token by itself as text; bytes that are no character are replaced.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }

    /// The id of the token that is written like this in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.library.token_to_id(token)
    }

    /// How the vocabulary writes a token.
    pub fn vocabulary_text(&self, id: u32) -> Option<String> {
        self.0.library.id_to_token(id)
    }

    /// Whether the token is a mark that is no part of the text, such as the end of a turn.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Token ids are below this.
    pub fn size(&self) -> u32 {
        // It has as many entries as the highest id needs, which is a u32.
        self.0.special.len() as u32
    }

    /// Whether a text is what its tokens say one after the other, with nothing between them.
    pub fn is_plain(&self) -> bool {
        self.separator().is_empty()
    }

    /// The length of the longest token in bytes.
    pub fn longest_token(&self) -> usize {
        self.0.longest
    }

    pub(super) fn separator(&self) -> &'static str {
        self.0.pieces.separator
    }

    pub(super) fn start(&self) -> Start {
        self.0.pieces.start
    }

    /// What the library makes of a whole sequence: the reference in tests.
    #[cfg(test)]
    pub(crate) fn library_decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.0.library.decode(ids, skip_special).unwrap()
    }
}

fn failed(error: impl std::fmt::Display) -> TextError {
    TextError::Encode(error.to_string())
}

fn compact(encoding: &tokenizers::Encoding) -> Result<Encoded, TextError> {
    let narrow = |&(from, to): &(usize, usize)| Some((u32::try_from(from).ok()?, u32::try_from(to).ok()?));
    let offsets = encoding.get_offsets().iter().map(narrow).collect::<Option<_>>();
    let offsets = offsets.ok_or_else(|| TextError::Encode("the text has more than 4 GiB".into()))?;
    Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets })
}

/// The text in parts: these tokens, which are done, and what is between them. The ranges are bytes of the text, which has
/// not been changed yet.
fn split_at(
    whole: &NormalizedString,
    tokens: &[(u32, usize, usize)],
) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
    let slice =
        |from: usize, to: usize| whole.slice(normalizer::Range::Normalized(from..to)).unwrap_or_default();
    let mut parts = Vec::with_capacity(2 * tokens.len() + 1);
    let mut end = 0;
    for &(id, from, to) in tokens {
        parts.push((slice(end, from), None));
        let part = slice(from, to);
        let token = Token::new(id, part.get().to_owned(), (0, to - from));
        parts.push((part, Some(vec![token])));
        end = to;
    }
    parts.push((slice(end, whole.get().len()), None));
    parts
}

/// What the post-processor puts before and after a text, if that is all that it does.
fn around(library: &Library) -> Option<(Vec<u32>, Vec<u32>)> {
    let (bare, whole) = (library.encode("a", false).ok()?, library.encode("a", true).ok()?);
    let (bare, whole) = (bare.get_ids(), whole.get_ids());
    let at = (0..=whole.len().checked_sub(bare.len())?).find(|&at| whole[at..].starts_with(bare))?;
    Some((whole[..at].to_vec(), whole[at + bare.len()..].to_vec()))
}

/// Some models do not declare the marks of their turns as special tokens. They are known by this form.
fn is_control_shaped(text: &str) -> bool {
    let enclosed = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    text.len() > 4 && (enclosed("<|", "|>") || enclosed("<｜", "｜>"))
}

fn bos_to_add(assets: &Assets, library: &Library) -> Result<Option<u32>, TextError> {
    let (Some(true), Some(bos)) = (assets.add_bos_token, &assets.bos_token) else { return Ok(None) };
    let Some(bos) = library.token_to_id(bos) else { return Ok(None) };
    let probe = library.encode("a", true).map_err(|e| TextError::Encode(e.to_string()))?;
    Ok((probe.get_ids().first() != Some(&bos)).then_some(bos))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_support;

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut assets = test_support::assets();
        let mut file: Value = serde_json::from_slice(&assets.tokenizer).unwrap();
        change(&mut file);
        assets.tokenizer = serde_json::to_vec(&file).unwrap();
        Tokenizer::new(&assets, 1).unwrap_err().to_string()
    }

    #[test]
    fn ids_that_no_table_could_hold_are_refused() {
        for id in [u32::MAX, u32::MAX - 1, MAX_IDS] {
            let in_vocabulary = refusal(|file| file["model"]["vocab"]["far"] = json!(id));
            let added = refusal(|file| {
                let mut token = file["added_tokens"][0].clone();
                (token["id"], token["content"]) = (json!(id), json!("<far>"));
                // As the library wants them: known to the model too.
                file["model"]["vocab"]["<far>"] = json!(id);
                file["added_tokens"].as_array_mut().unwrap().push(token);
            });
            for text in [in_vocabulary, added] {
                assert!(text.contains(&format!("a token with the id {id}, but ids must be below")), "{text}");
            }
        }
    }
}
