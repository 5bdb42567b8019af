//! The tokenizer of a GGUF file: the keys `tokenizer.*`.

use super::file::Header;
use crate::error::Error;
use crate::fault::FileFault;
use crate::vocabulary::{PieceKind, SpecialTokenIds, TokenizerData};

/// The largest number of tokens, as in the configurations of models.
const MAX_TOKENS: usize = 1 << 24;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Reads the tokenizer. Returns `None` if the file has none.
pub(super) fn read(header: &Header<'_>) -> Result<Option<TokenizerData>, Error> {
    let Some(model) = header.text(MODEL)?.filter(|model| *model != "none" && *model != "no_vocab") else {
        return Ok(None);
    };
    let tokens = header
        .array(TOKENS, |array, key| {
            let (found, limit) = (array.len(), MAX_TOKENS);
            if found > limit {
                let reason = format!("has {found} entries, more than the limit of {limit}");
                return Err(FileFault::Value { key: key.to_owned(), reason });
            }
            array.texts(key)
        })?
        .ok_or_else(|| header.fault(FileFault::MissingKey(TOKENS.to_owned())))?;
    let scores = header.array(SCORES, |array, key| array.numbers(key))?.unwrap_or_default();
    let kinds = header.array(KINDS, |array, key| array.counts(key))?.unwrap_or_default();
    for (key, found) in [(SCORES, scores.len()), (KINDS, kinds.len())] {
        if found != 0 && found != tokens.len() {
            let reason = format!("has {found} entries for {} tokens", tokens.len());
            return Err(header.fault(FileFault::Value { key: key.to_owned(), reason }));
        }
    }
    let kind = |(token, id): (usize, u64)| {
        PieceKind::of_file(id).ok_or_else(|| {
            let reason = format!("has the unknown kind {id} for token {token}");
            header.fault(FileFault::Value { key: KINDS.to_owned(), reason })
        })
    };
    let owned = |key: &str| header.text(&format!("tokenizer.{key}")).map(|text| text.map(str::to_owned));
    let flag = |key: &str| header.truth(&format!("tokenizer.ggml.{key}"));
    Ok(Some(TokenizerData {
        model: model.to_owned(),
        pre: owned("ggml.pre")?,
        special: special(header, tokens.len())?,
        tokens,
        scores: scores.into_iter().map(|score| score as f32).collect(),
        kinds: kinds.into_iter().enumerate().map(kind).collect::<Result<_, _>>()?,
        merges: header.array(MERGES, |array, key| array.texts(key))?.unwrap_or_default(),
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        precompiled_charsmap: header
            .array("tokenizer.ggml.precompiled_charsmap", |array, key| array.bytes(key))?
            .unwrap_or_default(),
        chat_template: owned("chat_template")?,
        named_templates: named_templates(header)?,
        huggingface_json: owned("huggingface.json")?,
    }))
}

fn special(header: &Header<'_>, tokens: usize) -> Result<SpecialTokenIds, Error> {
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = header.count(&key)? else { return Ok(None) };
        match u32::try_from(id) {
            Ok(id) if (id as usize) < tokens => Ok(Some(id)),
            // The largest number of 32 bits says that there is no such token.
            Ok(u32::MAX) => Ok(None),
            _ => {
                let reason = format!("is {id}, but there are only {tokens} tokens");
                Err(header.fault(FileFault::Value { key, reason }))
            }
        }
    };
    Ok(SpecialTokenIds {
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unknown: id("unknown")?,
        // The format spells it so.
        separator: id("seperator")?,
        padding: id("padding")?,
        mask: id("mask")?,
        cls: id("cls")?,
    })
}

fn named_templates(header: &Header<'_>) -> Result<Vec<(String, String)>, Error> {
    let mut templates = Vec::new();
    for key in header.keys() {
        let Some(name) = key.strip_prefix(TEMPLATE).and_then(|rest| rest.strip_prefix('.')) else { continue };
        if let Some(template) = header.text(key)? {
            templates.push((name.to_owned(), template.to_owned()));
        }
    }
    Ok(templates)
}
