//! A model's tokenizer: the properties of its tokens, and encoding on the current thread. The
//! `chunks` module encodes long texts in parts.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, Token, normalizer,
};

use super::control_tokens::ControlTokens;
use super::conversation::RenderedPrompt;
use super::cut_marks::CutMarks;
use super::encoded::{EncodedText, SpecialTokens};
use super::error::TextError;
use super::pair_affixes::PairAffixes;
use super::split_points::SplitPoints;
use super::token_bytes::{LeadingTrim, TokenBytes};
use super::vocabulary::{BuiltTokenizer, Library, TextNormalizer, build};
use crate::assets::{TextAssets, TokenizerSource};

/// The exclusive upper bound of token ids. Tables by id have an entry for each id up to the highest
/// one.
const MAX_IDS: u32 = 1 << 24;

/// Converts between text and token ids. Clones share the same data.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<TokenizerData>);

#[derive(Debug)]
struct TokenizerData {
    library: Library,
    token_bytes: TokenBytes,
    longest: usize,
    /// Whether each token is a special token, by id. It is read for every generated token.
    special: Vec<bool>,
    /// The ids of the special tokens, in ascending order.
    special_ids: Vec<u32>,
    /// The token to put in front of raw prompts if the configuration asks for it and the
    /// post-processor does not add it.
    bos: Option<u32>,
    /// The tokens that the post-processor puts before and after a text; `None` if it does anything
    /// else.
    affixes: Option<(Vec<u32>, Vec<u32>)>,
    /// The token to put after texts that become vectors, if the configuration asks for it and the
    /// post-processor does not add it.
    vector_end: Option<u32>,
    /// The end token, if the post-processor puts it after a text.
    text_end: Option<u32>,
    /// The tokens that the post-processor puts around a pair of texts; `None` if they are not
    /// known.
    pair: Option<PairAffixes>,
    control: Arc<ControlTokens>,
    /// The control tokens that the library finds only in the normalized text.
    normalized: ControlTokens,
    /// Computed for the first long text.
    split_points: OnceLock<SplitPoints>,
    /// Computed for the first text that is encoded in pieces.
    cut_marks: OnceLock<CutMarks>,
}

impl Tokenizer {
    /// Reads the tokenizer of a model.
    ///
    /// # Errors
    /// [`TextError`] says what is wrong with the file.
    pub fn new(assets: &TextAssets) -> Result<Self, TextError> {
        let BuiltTokenizer { mut library, decoder, markers } = load(assets)?;
        // The server applies its own limits to prompts, and batches are never padded.
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
        let token_bytes = TokenBytes::new(Some(&decoder), highest + 1, |id| library.id_to_token(id))?;
        let bos = bos_to_add(assets, &library)?;
        let (affixes, pair) = (affixes(&library), PairAffixes::of(&library));
        let EndTokens { vector_end, text_end } = EndTokens::new(assets, &library, affixes.as_ref());
        let named = [&assets.bos_token, &assets.eos_token].into_iter().flatten();
        let is_named =
            |id: u32, text: &String| assets.eos_ids.contains(&id) || named.clone().any(|name| name == text);
        let is_control = |id: u32, text: &String, special: bool| {
            special || is_named(id, text) || is_control_shaped(text) || markers.contains(text)
        };
        let control: Vec<_> = added
            .iter()
            .filter(|(id, token)| is_control(**id, &token.content, token.special))
            .map(|(_, token)| token)
            .collect();
        let normalized = control.iter().filter(|token| token.normalized);
        let normalized = ControlTokens::new(normalized.map(|token| token.content.clone()));
        let control = ControlTokens::new(control.iter().map(|token| token.content.clone()));
        Ok(Tokenizer(Arc::new(TokenizerData {
            longest: token_bytes.longest(),
            library,
            token_bytes,
            special_ids: (0..).zip(&special).filter(|(_, special)| **special).map(|(id, _)| id).collect(),
            special,
            bos,
            affixes,
            vector_end,
            text_end,
            pair,
            control: Arc::new(control),
            normalized,
            split_points: OnceLock::new(),
            cut_marks: OnceLock::new(),
        })))
    }

    /// Encodes a text on the current thread.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub fn encode_now(&self, text: &str, specials: SpecialTokens) -> Result<EncodedText, TextError> {
        let encoded = self.library_encode(text, specials == SpecialTokens::Add)?;
        Ok(self.with_bos(encoded, specials))
    }

    /// Encodes a prompt on the current thread. Its literal ranges are encoded as ordinary text,
    /// whatever they contain.
    ///
    /// # Errors
    /// The same as [`Tokenizer::encode_now`].
    pub fn encode_rendered_now(
        &self,
        text: &RenderedPrompt,
        specials: SpecialTokens,
    ) -> Result<EncodedText, TextError> {
        let add = specials == SpecialTokens::Add;
        let encoded = match text.literal.is_empty() {
            true => self.library_encode(&text.text, add)?,
            false => self.encode_literal(&text.text, &text.literal, add)?,
        };
        Ok(self.with_bos(encoded, specials))
    }

    /// Runs the library's steps for a text. If `add` is set, the post-processor's tokens are added.
    pub(super) fn library_encode(&self, text: &str, add: bool) -> Result<EncodedText, TextError> {
        let encoding = self.0.library.encode(text, add).map_err(encode_error)?;
        compact(&encoding)
    }

    /// Repeats the library's steps for a whole text, except that added tokens in the literal ranges
    /// are not recognized.
    pub(super) fn encode_literal(
        &self,
        text: &str,
        literal: &[std::ops::Range<usize>],
        add: bool,
    ) -> Result<EncodedText, TextError> {
        let library = &self.0.library;
        let genuine = self.genuine(text, literal);
        let mut parts = PreTokenizedString::from(text);
        parts.split(|_, whole| Ok(split_at(&whole, &genuine))).map_err(encode_error)?;
        if let Some(normalizer) = library.get_normalizer() {
            parts.normalize(|part| normalizer.normalize(part)).map_err(encode_error)?;
        }
        if let Some(pre_tokenizer) = library.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts).map_err(encode_error)?;
        }
        parts.tokenize(|part| library.get_model().tokenize(part.get())).map_err(encode_error)?;
        let encoding = parts.into_encoding(None, 0, OffsetType::Byte).map_err(encode_error)?;
        compact(&library.post_process(encoding, None, add).map_err(encode_error)?)
    }

    /// Returns the added tokens of a text with their byte ranges, without those in the literal
    /// ranges.
    fn genuine(&self, text: &str, literal: &[std::ops::Range<usize>]) -> Vec<(u32, usize, usize)> {
        // Only the first range that ends after the token's beginning can overlap the token.
        let meets = |ranges: &[std::ops::Range<usize>], from: usize, to: usize| {
            let near = ranges.partition_point(|range| range.end <= from);
            ranges.get(near).is_some_and(|range| range.start < to)
        };
        // Without a normalizer, this call finds the added tokens and changes nothing.
        let vocabulary = self.0.library.get_added_vocabulary();
        let found = vocabulary.extract_and_normalize(None::<&NormalizerWrapper>, text);
        let found = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let genuine = found.iter().filter_map(|(_, (from, to), tokens)| {
            let id = tokens.as_ref()?.first()?.id;
            (!meets(literal, *from, *to)).then_some((id, *from, *to))
        });
        let mut genuine: Vec<_> = genuine.collect();
        // The call misses the tokens that the library finds only in the normalized text.
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

    fn with_bos(&self, mut encoded: EncodedText, specials: SpecialTokens) -> EncodedText {
        if let (Some(bos), SpecialTokens::Add) = (self.0.bos, specials) {
            encoded.ids.insert(0, bos);
            encoded.offsets.insert(0, (0, 0));
        }
        encoded
    }

    /// Returns the tokens that are added before and after a text; `None` if they are not known.
    pub fn affixes(&self, specials: SpecialTokens) -> Option<(EncodedText, EncodedText)> {
        if specials == SpecialTokens::Omit {
            return Some((EncodedText::default(), EncodedText::default()));
        }
        let (before, after) = self.0.affixes.as_ref()?;
        let before = self.with_bos(EncodedText::outside(before), specials);
        Some((before, EncodedText::outside(after)))
    }

    /// Returns the token to put after a text that becomes a vector, and which encoding does not
    /// add.
    pub fn vector_end(&self) -> Option<u32> {
        self.0.vector_end
    }

    /// Returns the end token, if encoding adds it after a text. A text that is to be continued must
    /// not end with it.
    pub fn text_end(&self) -> Option<u32> {
        self.0.text_end
    }

    /// Returns the tokens around a pair of texts, if the tokenizer has a form for pairs.
    pub fn pair_affixes(&self) -> Option<&PairAffixes> {
        self.0.pair.as_ref()
    }

    /// Returns the kinds of places at which long texts can be split.
    pub(super) fn split_points(&self) -> SplitPoints {
        *self.0.split_points.get_or_init(|| {
            if self.takes_spaces_from_words() {
                return SplitPoints::default();
            }
            let tokens = (0..self.size()).map(|id| self.token_bytes(id));
            SplitPoints::of(|text| self.library_encode(text, false).ok(), tokens)
        })
    }

    /// Whether an added token that begins or ends with a letter takes the white space beside it,
    /// at which a text may be split.
    fn takes_spaces_from_words(&self) -> bool {
        let added = self.0.library.get_added_tokens_decoder();
        let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphabetic);
        added.values().any(|token| {
            let content = token.content.as_bytes();
            token.lstrip && is_letter(content.first()) || token.rstrip && is_letter(content.last())
        })
    }

    /// Whether pieces of texts have exactly the tokens of the whole text (see
    /// [`Tokenizer::pieces`]). A unigram model compares sums of scores, whose rounding depends on
    /// the text before, unless words are separated first.
    pub fn has_exact_pieces(&self) -> bool {
        !self.0.library.get_model().sums_scores() || self.separates_words()
    }

    /// Whether the pre-tokenizer separates words and lines, so that the model gets each by itself.
    fn separates_words(&self) -> bool {
        let Some(pre_tokenizer) = self.0.library.get_pre_tokenizer() else { return false };
        ["e s", "e\ns"].into_iter().all(|text| {
            let mut parts = PreTokenizedString::from(text);
            let done = pre_tokenizer.pre_tokenize(&mut parts);
            done.is_ok() && parts.get_splits(OffsetReferential::Original, OffsetType::Byte).len() > 1
        })
    }

    /// Returns the added tokens in front of which texts can be split.
    pub(super) fn cut_marks(&self) -> &CutMarks {
        self.0
            .cut_marks
            .get_or_init(|| CutMarks::of(&self.0.library, |text| self.library_encode(text, false).ok()))
    }

    /// Returns the special tokens that clients must not be able to write into messages.
    pub fn control_tokens(&self) -> &Arc<ControlTokens> {
        &self.0.control
    }

    /// Returns the bytes that a token adds to a text. They are empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.token_bytes.get(id)
    }

    /// Returns a single token as text. Bytes that are not a character are replaced.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }

    /// Returns the id of the token with this text in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.library.token_to_id(token)
    }

    /// Returns the text of a token in the vocabulary.
    pub fn vocabulary_text(&self, id: u32) -> Option<String> {
        self.0.library.id_to_token(id)
    }

    /// Whether a token is special: not part of the text, such as the end of a turn.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Returns the ids of the special tokens, in ascending order.
    pub fn special_ids(&self) -> &[u32] {
        &self.0.special_ids
    }

    /// Returns the exclusive upper bound of the token ids.
    pub fn size(&self) -> u32 {
        // The length is the highest id plus one, which fits a u32.
        self.0.special.len() as u32
    }

    /// Whether the text of a sequence is the concatenated text of its tokens.
    pub fn is_plain(&self) -> bool {
        self.separator().is_empty()
    }

    /// Returns the length of the longest token in bytes.
    pub fn longest_token(&self) -> usize {
        self.0.longest
    }

    pub(super) fn separator(&self) -> &'static str {
        self.0.token_bytes.separator
    }

    pub(super) fn leading_trim(&self) -> LeadingTrim {
        self.0.token_bytes.leading_trim
    }

    /// Decodes a whole sequence with the library, as the reference in tests.
    #[cfg(test)]
    pub(crate) fn library_decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.0.library.decode(ids, skip_special).unwrap()
    }
}

/// Builds the library's tokenizer from the files of a model.
fn load(assets: &TextAssets) -> Result<BuiltTokenizer, TextError> {
    match &assets.tokenizer {
        TokenizerSource::Json(json) => {
            let wrong = |error: serde_json::Error| TextError::Tokenizer(error.to_string());
            // The library panics if a decoder is not valid JSON, so the whole file is read first.
            let mut file: serde_json::Value = serde_json::from_slice(json).map_err(wrong)?;
            let library: Library = serde_json::from_slice(json).map_err(wrong)?;
            library.get_normalizer().map_or(Ok(()), TextNormalizer::check)?;
            check_templates(&file["post_processor"])?;
            let decoder = file.get_mut("decoder").map(serde_json::Value::take).unwrap_or_default();
            Ok(BuiltTokenizer { library, decoder, markers: HashSet::new() })
        }
        TokenizerSource::Vocabulary(vocabulary) => {
            let template = [&assets.chat_template, &assets.tool_template].into_iter().flatten();
            let template: String = template.map(String::as_str).collect();
            let named = [&assets.bos_token, &assets.eos_token].into_iter().flatten();
            let is_marker = |text: &str| {
                let enclosed = |open, close| text.starts_with(open) && text.ends_with(close);
                is_control_shaped(text)
                    || named.clone().any(|name| name == text)
                    || enclosed("<reserved_", ">")
                    || (enclosed("<", ">") || enclosed("[", "]")) && template.contains(text)
            };
            build(vocabulary, &is_marker)
        }
    }
}

/// Checks that templates of the post-processor use no special token that they do not list. The
/// library panics when it looks for such a token.
///
/// # Errors
/// The name of the first one.
fn check_templates(step: &serde_json::Value) -> Result<(), TextError> {
    // A sequence of steps is a list in an object.
    let lists = step.as_object().into_iter().flatten().filter_map(|(_, value)| value.as_array());
    lists.flatten().try_for_each(check_templates)?;
    let pieces = ["single", "pair"].map(|form| step[form].as_array().into_iter().flatten());
    let used = pieces.into_iter().flatten().filter_map(|piece| piece["SpecialToken"]["id"].as_str());
    match used.into_iter().find(|id| step["special_tokens"].get(id).is_none()) {
        Some(id) => {
            let reason =
                format!("the post_processor uses the token {id:?}, which its special_tokens do not have");
            Err(TextError::Tokenizer(reason))
        }
        None => Ok(()),
    }
}

fn encode_error(error: impl std::fmt::Display) -> TextError {
    TextError::Encode(error.to_string())
}

fn compact(encoding: &tokenizers::Encoding) -> Result<EncodedText, TextError> {
    let narrow = |&(from, to): &(usize, usize)| Some((u32::try_from(from).ok()?, u32::try_from(to).ok()?));
    let offsets = encoding.get_offsets().iter().map(narrow).collect::<Option<_>>();
    let offsets = offsets.ok_or_else(|| TextError::Encode("the text has more than 4 GiB".into()))?;
    Ok(EncodedText { ids: encoding.get_ids().to_vec(), offsets })
}

/// Splits the text into the given tokens, which are final, and the parts between them. The ranges
/// are in bytes of the text before normalization.
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

/// Returns the tokens that the post-processor puts before and after a text; `None` if it does
/// anything else.
fn affixes(library: &Library) -> Option<(Vec<u32>, Vec<u32>)> {
    let (bare, whole) = (library.encode("a", false).ok()?, library.encode("a", true).ok()?);
    let (bare, whole) = (bare.get_ids(), whole.get_ids());
    let at = (0..=whole.len().checked_sub(bare.len())?).find(|&at| whole[at..].starts_with(bare))?;
    Some((whole[..at].to_vec(), whole[at + bare.len()..].to_vec()))
}

/// The end tokens after texts.
struct EndTokens {
    vector_end: Option<u32>,
    text_end: Option<u32>,
}

impl EndTokens {
    /// Compares the configuration with the `affixes` that the post-processor puts around a text.
    fn new(assets: &TextAssets, library: &Library, affixes: Option<&(Vec<u32>, Vec<u32>)>) -> EndTokens {
        let named = assets.eos_token.as_ref().and_then(|text| library.token_to_id(text));
        let eos = named.or_else(|| assets.eos_ids.first().copied());
        let last = affixes.and_then(|(_, after)| after.last().copied());
        let text_end = last.filter(|last| eos == Some(*last));
        let wants_end = assets.add_eos_token == Some(true) && text_end.is_none();
        if wants_end && eos.is_none() {
            tracing::warn!(
                "tokenizer_config.json: `add_eos_token` is true, but no file names an end token of the vocabulary"
            );
        }
        EndTokens { vector_end: eos.filter(|_| wants_end), text_end }
    }
}

/// Whether a text has the form of a control token. Some models do not declare their turn markers as
/// special tokens.
fn is_control_shaped(text: &str) -> bool {
    let enclosed = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    text.len() > 4 && (enclosed("<|", "|>") || enclosed("<｜", "｜>"))
}

fn bos_to_add(assets: &TextAssets, library: &Library) -> Result<Option<u32>, TextError> {
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
        let TokenizerSource::Json(json) = &assets.tokenizer else { panic!("not a tokenizer.json") };
        let mut file: Value = serde_json::from_slice(json).unwrap();
        change(&mut file);
        assets.tokenizer = serde_json::to_vec(&file).unwrap().into();
        Tokenizer::new(&assets).unwrap_err().to_string()
    }

    #[test]
    fn excessive_token_ids_are_refused() {
        for id in [u32::MAX, u32::MAX - 1, MAX_IDS] {
            let in_vocabulary = refusal(|file| file["model"]["vocab"]["far"] = json!(id));
            let added = refusal(|file| {
                let mut token = file["added_tokens"][0].clone();
                (token["id"], token["content"]) = (json!(id), json!("<far>"));
                // The library requires that the model knows the token too.
                file["model"]["vocab"]["<far>"] = json!(id);
                file["added_tokens"].as_array_mut().unwrap().push(token);
            });
            for text in [in_vocabulary, added] {
                assert!(text.contains(&format!("a token with the id {id}, but ids must be below")), "{text}");
            }
        }
    }
}
