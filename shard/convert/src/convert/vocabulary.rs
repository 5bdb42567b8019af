//! Keeps a part of a vocabulary: the tokens of `tokenizer.json`, and the rows that belong to them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use serde_json::{Map, Value, json};

/// Ids of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIds(Vec<Range<u32>>);

impl TokenIds {
    /// Returns the ids of `ranges`, which may overlap.
    pub fn new(mut ranges: Vec<Range<u32>>) -> TokenIds {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let overlaps = next.start <= last.end;
            if overlaps {
                last.end = last.end.max(next.end);
            }
            overlaps
        });
        TokenIds(ranges)
    }

    fn contains(&self, id: u32) -> bool {
        let after = self.0.partition_point(|range| range.start <= id);
        after.checked_sub(1).is_some_and(|last| self.0[last].contains(&id))
    }
}

/// The tokens that stay, by their ids. Special and added tokens always stay, as do single
/// characters and bytes, so that every text that had tokens still has, and the tokens that others
/// are merged from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VocabularyCut {
    /// Only these stay.
    Keep(TokenIds),
    /// All but these stay.
    Drop(TokenIds),
}

impl VocabularyCut {
    fn wants(&self, id: u32) -> bool {
        match self {
            VocabularyCut::Keep(ids) => ids.contains(id),
            VocabularyCut::Drop(ids) => !ids.contains(id),
        }
    }
}

/// The ids that stay. The new id of each is its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeptIds {
    /// Sorted ids of the old vocabulary, at least one.
    pub(super) stored: Vec<u32>,
    /// Tokens that stay although they were not wanted.
    pub(super) unwanted: usize,
}

impl KeptIds {
    /// Returns the new id of a token, if it stays.
    pub(super) fn new_id(&self, id: u64) -> Option<usize> {
        let id = u32::try_from(id).ok()?;
        self.stored.binary_search(&id).ok()
    }
}

/// Cuts the vocabulary of `tokenizer`, the content of a `tokenizer.json`, for a model with `rows`
/// rows in its embedding. `needed` are ids that other files name.
///
/// # Errors
/// If the tokenizer is of another kind, its ids are not rows, or no token stays.
pub(super) fn cut(
    tokenizer: &mut Value,
    rows: usize,
    needed: &[u64],
    cut: &VocabularyCut,
) -> Result<KeptIds, String> {
    let added = added_tokens(tokenizer)?;
    let Some(model) = tokenizer.get_mut("model").and_then(Value::as_object_mut) else {
        return Err("tokenizer.json has no model".to_owned());
    };
    let tokens = tokens(model)?;
    if let Some((text, id)) = tokens.iter().chain(&added).find(|(_, id)| **id as usize >= rows) {
        return Err(format!("token {text:?} has the id {id}, and the embedding has {rows} rows"));
    }
    let all: BTreeSet<u32> = tokens.values().chain(added.values()).copied().collect();
    let wanted: BTreeSet<u32> = all.iter().copied().filter(|&id| cut.wants(id)).collect();
    let mut kept = wanted.clone();
    kept.extend(added.values());
    kept.extend(needed.iter().filter_map(|&id| u32::try_from(id).ok()).filter(|id| all.contains(id)));
    kept.extend(unknown(model, &tokens));
    kept.extend(tokens.iter().filter(|(text, _)| is_smallest(text)).map(|(_, id)| *id));
    keep_parts(model, &tokens, &mut kept)?;
    let unwanted = kept.difference(&wanted).count();
    let kept = KeptIds { stored: kept.into_iter().collect(), unwanted };
    if kept.stored.is_empty() {
        return Err("no token would stay".to_owned());
    }
    rewrite_model(model, &tokens, &kept)?;
    rewrite_others(tokenizer, &kept)?;
    Ok(kept)
}

type Tokens = HashMap<String, u32>;

fn added_tokens(tokenizer: &Value) -> Result<Tokens, String> {
    let added = tokenizer.get("added_tokens").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let token = |token: &Value| {
        let id = token.get("id")?.as_u64().and_then(|id| u32::try_from(id).ok())?;
        Some((token.get("content")?.as_str()?.to_owned(), id))
    };
    let read: Option<Tokens> = added.iter().map(token).collect();
    read.ok_or_else(|| "tokenizer.json has an added token without a text or an id".to_owned())
}

/// Returns the tokens of a `model`, which are an object of ids, or a list of texts with scores.
fn tokens(model: &Map<String, Value>) -> Result<Tokens, String> {
    let read: Option<Tokens> = match model.get("vocab") {
        Some(Value::Object(ids)) => {
            let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
            ids.iter().map(|(text, value)| Some((text.clone(), id(value)?))).collect()
        }
        Some(Value::Array(pieces)) => {
            let text = |piece: &Value| piece.get(0).and_then(Value::as_str).map(str::to_owned);
            (0..).zip(pieces).map(|(id, piece)| Some((text(piece)?, id))).collect()
        }
        _ => None,
    };
    read.ok_or_else(|| "tokenizer.json has no vocabulary that can be read".to_owned())
}

/// Returns the id of the token for unknown text.
fn unknown(model: &Map<String, Value>, tokens: &Tokens) -> Option<u32> {
    match model.get("unk_id").and_then(Value::as_u64) {
        Some(id) => u32::try_from(id).ok(),
        None => tokens.get(model.get("unk_token")?.as_str()?).copied(),
    }
}

/// Whether a token is a character, or a byte: what every text can be taken apart into.
fn is_smallest(text: &str) -> bool {
    let inner = text.strip_prefix("##").filter(|inner| !inner.is_empty()).unwrap_or(text);
    let is_byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
    inner.chars().nth(1).is_none() || is_byte
}

/// A merge of byte-pair encoding, which is a text with a space or a list of two.
fn parts(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => text.split_once(' '),
        _ => Some((merge.get(0)?.as_str()?, merge.get(1)?.as_str()?)),
    }
}

fn merges(model: &Map<String, Value>) -> Result<Vec<(&str, &str)>, String> {
    let merges = model.get("merges").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let read: Option<Vec<_>> = merges.iter().map(parts).collect();
    read.ok_or_else(|| "tokenizer.json has a merge that is not two tokens".to_owned())
}

/// Adds the tokens that kept tokens are merged from, by the first merge that gives each.
fn keep_parts(model: &Map<String, Value>, tokens: &Tokens, kept: &mut BTreeSet<u32>) -> Result<(), String> {
    let mut made_of: HashMap<u32, [u32; 2]> = HashMap::new();
    for (left, right) in merges(model)? {
        let id = |text: &str| tokens.get(text).copied();
        if let (Some(whole), Some(left), Some(right)) = (id(&format!("{left}{right}")), id(left), id(right)) {
            made_of.entry(whole).or_insert([left, right]);
        }
    }
    let mut open: Vec<u32> = kept.iter().copied().collect();
    while let Some(id) = open.pop() {
        for part in made_of.get(&id).copied().into_iter().flatten() {
            if kept.insert(part) {
                open.push(part);
            }
        }
    }
    Ok(())
}

/// Gives the tokens of `model` their new ids, and removes the others and their merges.
fn rewrite_model(model: &mut Map<String, Value>, tokens: &Tokens, kept: &KeptIds) -> Result<(), String> {
    let stays = |text: &str| tokens.get(text).is_some_and(|&id| kept.new_id(id.into()).is_some());
    let merges = merges(model)?
        .into_iter()
        .map(|(left, right)| stays(left) && stays(right) && stays(&format!("{left}{right}")));
    let mut merge_stays = merges.collect::<Vec<bool>>().into_iter();
    if let Some(Value::Array(merges)) = model.get_mut("merges") {
        merges.retain(|_| merge_stays.next().unwrap_or(false));
    }
    match model.get_mut("vocab") {
        Some(Value::Object(ids)) => {
            ids.retain(|_, id| id.as_u64().is_some_and(|id| kept.new_id(id).is_some()));
            for id in ids.values_mut() {
                *id = json!(id.as_u64().and_then(|id| kept.new_id(id)));
            }
        }
        // The place in the list is the id. Added tokens that are not in the list follow it.
        Some(Value::Array(pieces)) => {
            let mut id = 0;
            pieces.retain(|_| {
                id += 1;
                kept.new_id(id - 1).is_some()
            });
        }
        _ => {}
    }
    if let Some(id) = model.get("unk_id").and_then(Value::as_u64) {
        model.insert("unk_id".to_owned(), json!(kept.new_id(id)));
    }
    Ok(())
}

/// Gives added tokens, and those that are put around texts, their new ids.
fn rewrite_others(tokenizer: &mut Value, kept: &KeptIds) -> Result<(), String> {
    for token in tokenizer.get_mut("added_tokens").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(id) = token.get_mut("id") {
            replace(id, kept)?;
        }
    }
    if let Some(id) = tokenizer.pointer_mut("/padding/pad_id") {
        replace(id, kept)?;
    }
    match tokenizer.get_mut("post_processor") {
        Some(template) => rewrite_template(template, kept),
        None => Ok(()),
    }
}

fn rewrite_template(template: &mut Value, kept: &KeptIds) -> Result<(), String> {
    let steps = template.pointer_mut("/processors").and_then(Value::as_array_mut);
    // A step is never a sequence of steps itself.
    for step in steps.into_iter().flatten() {
        rewrite_step(step, kept)?;
    }
    rewrite_step(template, kept)
}

fn rewrite_step(step: &mut Value, kept: &KeptIds) -> Result<(), String> {
    for key in ["sep", "cls"] {
        if let Some(id) = step.get_mut(key).and_then(|token| token.get_mut(1)) {
            replace(id, kept)?;
        }
    }
    let special = step.get_mut("special_tokens").and_then(Value::as_object_mut);
    for token in special.into_iter().flat_map(Map::values_mut) {
        for id in token.get_mut("ids").and_then(Value::as_array_mut).into_iter().flatten() {
            replace(id, kept)?;
        }
    }
    Ok(())
}

/// Replaces the id of a token that is needed.
fn replace(id: &mut Value, kept: &KeptIds) -> Result<(), String> {
    let new = id.as_u64().and_then(|id| kept.new_id(id));
    *id = json!(new.ok_or_else(|| format!("tokenizer.json names the token {id}, which it does not have"))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer of six characters and what is merged from them: `ab` is a part of `abc`.
    fn bpe() -> Value {
        json!({
            "added_tokens": [{"id": 0, "content": "<s>", "special": true}, {"id": 12, "content": "<end>"}],
            "padding": {"pad_id": 12},
            "post_processor": {"type": "Sequence", "processors": [
                {"type": "ByteLevel"},
                {"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>", "ids": [0]}}},
                {"type": "BertProcessing", "sep": ["<end>", 12], "cls": ["<s>", 0]},
            ]},
            "model": {
                "type": "BPE",
                "vocab": {"<s>": 0, "a": 1, "b": 2, "c": 3, "d": 4, "<0x0A>": 5, "ab": 6, "cd": 7, "abc": 8, "abcd": 9,
                          "bc": 10},
                "merges": ["a b", ["c", "d"], "ab c", "ab cd", "b c", "a bc"],
            },
        })
    }

    fn ids(bounds: &[(u32, u32)]) -> TokenIds {
        TokenIds::new(bounds.iter().map(|&(start, end)| start..end).collect())
    }

    #[test]
    fn kept_tokens_keep_what_they_are_made_of() {
        let mut tokenizer = bpe();
        let kept = cut(&mut tokenizer, 13, &[10, 99], &VocabularyCut::Keep(ids(&[(8, 9)]))).unwrap();
        // `abc` is merged from `ab`; `bc` is named by another file.
        assert_eq!(kept.stored, [0, 1, 2, 3, 4, 5, 6, 8, 10, 12]);
        assert_eq!(kept.unwanted, 9);
        let model = &tokenizer["model"];
        assert_eq!(model["merges"], json!(["a b", "ab c", "b c", "a bc"]));
        assert_eq!((&model["vocab"]["abc"], &model["vocab"]["bc"]), (&json!(7), &json!(8)));
        assert_eq!(model["vocab"].as_object().unwrap().len(), 9);
        assert_eq!(
            (&tokenizer["added_tokens"][1]["id"], &tokenizer["padding"]["pad_id"]),
            (&json!(9), &json!(9))
        );
        let steps = &tokenizer["post_processor"]["processors"];
        assert_eq!(steps[1]["special_tokens"]["<s>"]["ids"], json!([0]));
        assert_eq!((&steps[2]["sep"][1], &steps[2]["cls"][1]), (&json!(9), &json!(0)));
    }

    #[test]
    fn dropped_tokens_go_unless_others_need_them() {
        let mut tokenizer = bpe();
        let kept = cut(&mut tokenizer, 13, &[], &VocabularyCut::Drop(ids(&[(0, 7), (9, 11)]))).unwrap();
        assert_eq!(kept.stored, [0, 1, 2, 3, 4, 5, 6, 7, 8, 12]);
        assert_eq!(tokenizer["model"]["merges"], json!(["a b", ["c", "d"], "ab c"]));
        let mut whole = bpe();
        cut(&mut whole, 13, &[], &VocabularyCut::Drop(ids(&[]))).unwrap();
        assert_eq!(whole["model"]["merges"], bpe()["model"]["merges"]);
    }

    #[test]
    fn lists_of_pieces_and_continued_words_are_cut() {
        let mut unigram = json!({"model": {
            "type": "Unigram", "unk_id": 2, "vocab": [["abc", -1.0], ["a", -2.0], ["<unk>", 0.0], ["bc", -3.0]],
        }});
        let kept = cut(&mut unigram, 4, &[], &VocabularyCut::Keep(ids(&[(3, 4)]))).unwrap();
        assert_eq!(kept.stored, [1, 2, 3]);
        assert_eq!(unigram["model"]["vocab"], json!([["a", -2.0], ["<unk>", 0.0], ["bc", -3.0]]));
        assert_eq!(unigram["model"]["unk_id"], json!(1));
        let mut words = json!({"model": {
            "type": "WordPiece", "unk_token": "?!", "vocab": {"?!": 0, "##a": 1, "##ab": 2, "cd": 3, "##": 4},
        }});
        let kept = cut(&mut words, 5, &[], &VocabularyCut::Drop(ids(&[(0, 9)]))).unwrap();
        assert_eq!(kept.stored, [0, 1]);
    }

    #[test]
    fn ranges_may_overlap() {
        let ids = ids(&[(7, 9), (1, 3), (2, 4), (5, 5), (8, 12), (4, 5)]);
        let found: Vec<u32> = (0..20).filter(|&id| ids.contains(id)).collect();
        assert_eq!(found, [1, 2, 3, 4, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn tokenizers_that_do_not_fit_are_refused() {
        let refusal = |mut tokenizer: Value, rows| {
            cut(&mut tokenizer, rows, &[], &VocabularyCut::Drop(ids(&[]))).unwrap_err()
        };
        assert!(refusal(bpe(), 12).contains("<end>"));
        assert!(refusal(json!({}), 12).contains("no model"));
        assert!(refusal(json!({"model": {}}), 12).contains("no vocabulary"));
        assert!(refusal(json!({"model": {"vocab": {}}}), 12).contains("no token"));
        let mut merges = bpe();
        merges["model"]["merges"] = json!(["ab"]);
        assert!(refusal(merges, 13).contains("merge"));
        let mut padding = bpe();
        padding["padding"]["pad_id"] = json!(11);
        assert!(refusal(padding, 13).contains("names the token 11"));
    }
}
