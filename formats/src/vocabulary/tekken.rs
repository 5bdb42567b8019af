//! Mistral's `tekken.json`: byte strings by rank, special tokens, and the pattern that splits
//! texts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{AddedVocabularyToken, ByteVocabulary, MAX_TOKENS, VocabularyError};

const FORMAT: &str = "tekken.json";

/// The largest number of special tokens, 16 times that of published files. A file of a few bytes
/// can ask for many, because those without a name get one.
const MAX_SPECIALS: usize = 1 << 14;

/// A vocabulary of `tekken.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct TekkenVocabulary {
    /// The byte strings. Their ids follow those of the special tokens.
    pub bytes: ByteVocabulary,
    /// The special tokens, by id.
    pub special: Vec<AddedVocabularyToken>,
    /// The regular expression whose matches are encoded one by one.
    pub pattern: String,
}

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// The special tokens of files without a list of them: the first releases of the format.
const USUAL: [&str; 14] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "<pad>",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
];

/// Reads `tekken.json`. The file has more byte strings than the model uses; the last ones are left
/// out.
///
/// # Errors
/// [`VocabularyError`] names the first violation of the format.
pub fn read_tekken(bytes: &[u8]) -> Result<TekkenVocabulary, VocabularyError> {
    let wrong = |reason: String| VocabularyError::format(FORMAT, reason);
    let file: File = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    let (size, specials) = (file.config.default_vocab_size, file.config.default_num_special_tokens);
    if size > MAX_TOKENS {
        return Err(VocabularyError::TooMany(size));
    }
    if specials > MAX_SPECIALS {
        return Err(wrong(format!(
            "default_num_special_tokens is {specials}, more than the {MAX_SPECIALS} that are supported"
        )));
    }
    let count = size.checked_sub(specials).filter(|&count| count <= file.vocab.len()).ok_or_else(|| {
        wrong(format!(
            "default_vocab_size is {size}, but there are {} tokens and {specials} special tokens",
            file.vocab.len()
        ))
    })?;
    let tokens = file.vocab.into_iter().take(count).enumerate().map(|(rank, token)| {
        if token.rank != rank {
            return Err(wrong(format!("token {rank} has the rank {}", token.rank)));
        }
        STANDARD.decode(&token.token_bytes).map_err(|_| wrong(format!("token {rank} is not base64")))
    });
    let bytes = ByteVocabulary { tokens: tokens.collect::<Result<_, _>>()?, first_id: specials as u32 };
    let mut names: Vec<Option<String>> = vec![None; specials];
    match file.special_tokens {
        Some(list) => {
            for Special { rank, token_str } in list {
                let place = names
                    .get_mut(rank)
                    .ok_or_else(|| wrong(format!("special token {token_str:?} has the rank {rank}")))?;
                if place.replace(token_str).is_some() {
                    return Err(wrong(format!("two special tokens have the rank {rank}")));
                }
            }
        }
        None => names.iter_mut().zip(USUAL).for_each(|(name, usual)| *name = Some(usual.to_owned())),
    }
    let special = names.into_iter().enumerate().map(|(id, name)| AddedVocabularyToken {
        id: id as u32,
        text: name.unwrap_or_else(|| format!("<SPECIAL_{id}>")),
        special: true,
    });
    Ok(TekkenVocabulary { bytes: bytes.checked()?, special: special.collect(), pattern: file.config.pattern })
}
