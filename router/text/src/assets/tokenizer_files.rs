//! The files of a model folder that hold a vocabulary, for models without `tokenizer.json`.

use millrace_formats::vocabulary::{
    AddedVocabularyToken, PieceVocabulary, VocabularyError, is_tiktoken, read_llama2c, read_sentencepiece,
    read_tekken, read_tiktoken,
};
use serde_json::Value;

use super::added;
use super::facts::ModelFacts;
use super::vocabulary::{SplitPattern, Substitution, Vocabulary, VocabularyTokens};

/// Reads the vocabulary in a file of one format.
type Reader = fn(&[u8], &ModelFacts) -> Result<Vocabulary, VocabularyError>;

/// The files with vocabularies, in the order in which they are looked for.
pub(super) const FILES: &[(&str, Reader)] = &[
    ("tekken.json", tekken),
    ("ice_text.model", pieces_or_ranks),
    ("tokenizer.model", pieces_or_ranks),
    ("spiece.model", pieces_or_ranks),
    ("sentencepiece.bpe.model", reordered_pieces),
    ("qwen.tiktoken", pieces_or_ranks),
    ("tiktoken.model", pieces_or_ranks),
    ("tokenizer.bin", llama2c),
];

/// The properties of the models with tiktoken files.
struct RankedFamily {
    /// Whether a model belongs to the family.
    is: fn(&ModelFacts) -> bool,
    /// The name of the pattern that splits texts.
    pattern: &'static str,
    nfc: bool,
    /// The tokens after the last rank.
    added: fn() -> Vec<String>,
    /// The tokens in front of each raw prompt.
    prefix: &'static [&'static str],
}

/// The models with tiktoken files.
const RANKED: &[RankedFamily] = &[
    RankedFamily {
        is: |facts| facts.model_type == "qwen",
        pattern: "qwen2",
        nfc: true,
        added: added::qwen,
        prefix: &[],
    },
    RankedFamily {
        is: |facts| ["chatglm", "glm", "glm4"].contains(&facts.model_type.as_str()),
        pattern: "llama-bpe",
        nfc: false,
        added: added::glm4,
        prefix: &["[gMASK]", "<sop>"],
    },
    RankedFamily {
        is: |facts| ["llama", "mllama"].contains(&facts.model_type.as_str()),
        pattern: "llama-bpe",
        nfc: false,
        added: added::llama3,
        prefix: &["<|begin_of_text|>"],
    },
    RankedFamily {
        is: |facts| {
            facts.model_type.starts_with("kimi")
                || facts.tokenizer_class.as_deref() == Some("TikTokenTokenizer")
        },
        pattern: "kimi-k2",
        nfc: false,
        added: added::kimi,
        prefix: &[],
    },
];

/// Reads a file that is a SentencePiece model or a tiktoken file. The name does not tell which.
fn pieces_or_ranks(bytes: &[u8], facts: &ModelFacts) -> Result<Vocabulary, VocabularyError> {
    match is_tiktoken(bytes) {
        true => ranked(bytes, facts),
        false => pieces(read_sentencepiece(bytes)?, facts),
    }
}

/// Refuses a SentencePiece model whose ids are not those of the model: XLM-RoBERTa and the other
/// models with this file have tokens of fairseq before the pieces.
fn reordered_pieces(_: &[u8], _: &ModelFacts) -> Result<Vocabulary, VocabularyError> {
    Err(VocabularyError::Unsupported(
        "the models with this file give other ids to its pieces; save tokenizer.json beside it, which the \
         AutoTokenizer of transformers writes"
            .into(),
    ))
}

fn ranked(bytes: &[u8], facts: &ModelFacts) -> Result<Vocabulary, VocabularyError> {
    let family = RANKED.iter().find(|family| (family.is)(facts)).ok_or_else(|| {
        VocabularyError::Unsupported(format!(
            "it is a tiktoken file, which does not contain the pattern that splits texts, and the pattern of the model \
             type {:?} is not known",
            facts.model_type
        ))
    })?;
    let vocabulary = read_tiktoken(bytes)?;
    let first = vocabulary.tokens.len() as u32;
    let added = configured(added::following(first, &(family.added)()), first, &facts.tokenizer_config)?;
    let id = |text: &&str| added.iter().find(|token| token.text == **text).map(|token| token.id);
    let prefix = family.prefix.iter().filter_map(id).collect();
    let tokens = VocabularyTokens::Ranked {
        vocabulary,
        pattern: SplitPattern::Named(family.pattern),
        nfc: family.nfc,
    };
    Ok(Vocabulary { tokens, added, prefix, suffix: Vec::new() })
}

fn pieces(vocabulary: PieceVocabulary, facts: &ModelFacts) -> Result<Vocabulary, VocabularyError> {
    let count = vocabulary.pieces.len() as u32;
    if facts.is_chatglm1() {
        return Ok(chatglm1(vocabulary, facts));
    }
    let is_chatglm = facts.model_type == "chatglm";
    let mut added = Vec::new();
    let mut prefix = Vec::new();
    if is_chatglm {
        // ChatGLM2 has no tokens for roles.
        let texts = added::chatglm3();
        let used = if facts.is_chatglm3() { texts.len() } else { 5 };
        added = added::following(count, &texts[..used]);
        prefix = vec![count + 1, count + 3];
    }
    // Baichuan's turns begin with tokens that its vocabulary does not declare as special.
    for id in ["user_token_id", "assistant_token_id"].iter().filter_map(|key| facts.generation_id(key)) {
        if let Some(piece) = vocabulary.pieces.get(id as usize)
            && !added.iter().any(|token: &AddedVocabularyToken| token.id == id)
        {
            added.push(AddedVocabularyToken { id, text: piece.text.clone(), special: true });
        }
    }
    let added = configured(added, count, &facts.tokenizer_config)?;
    // Baichuan's own class does not put the begin token in front, the other ones do.
    let usual = facts.model_type != "baichuan";
    if !is_chatglm && facts.add_bos_token().unwrap_or(usual) {
        prefix.extend(vocabulary.bos);
    }
    let tokens = VocabularyTokens::Pieces { vocabulary, first_id: 0, substitutions: Vec::new() };
    Ok(Vocabulary { tokens, added, prefix, suffix: Vec::new() })
}

/// Builds ChatGLM-6B's vocabulary. The model's code replaces white space by tokens, and the ids of
/// an older revision begin after those of images.
fn chatglm1(vocabulary: PieceVocabulary, facts: &ModelFacts) -> Vocabulary {
    /// The longest run of spaces that has a token.
    const BLANKS: usize = 80;
    let substitution = |from: &str, to: String| Substitution { from: from.to_owned(), to };
    let blanks =
        (2..=BLANKS).rev().map(|count| substitution(&" ".repeat(count), format!("<|blank_{count}|>")));
    let lines = [substitution("\n", "<n>".into()), substitution("\t", "<|tab|>".into())];
    let substitutions = lines.into_iter().chain(blanks).collect();
    let old = facts.config_id("bos_token_id") == Some(150_004);
    let first_id = facts.tokenizer_id("num_image_tokens").unwrap_or(if old { 20_000 } else { 0 });
    let marker = |key: &str, text: &str, usual: u32| AddedVocabularyToken {
        id: facts.config_id(key).unwrap_or(usual),
        text: text.to_owned(),
        special: true,
    };
    let added = vec![
        marker("mask_token_id", "[MASK]", 130_000),
        marker("gmask_token_id", "[gMASK]", 130_001),
        marker("bos_token_id", "<sop>", 130_004),
        marker("eos_token_id", "<eop>", 130_005),
    ];
    let suffix = vec![added[1].id, added[2].id];
    let tokens = VocabularyTokens::Pieces { vocabulary, first_id, substitutions };
    Vocabulary { tokens, added, prefix: Vec::new(), suffix }
}

fn tekken(bytes: &[u8], _: &ModelFacts) -> Result<Vocabulary, VocabularyError> {
    let file = read_tekken(bytes)?;
    let prefix = file.special.iter().filter(|token| token.text == "<s>").map(|token| token.id).collect();
    let tokens = VocabularyTokens::Ranked {
        vocabulary: file.bytes,
        pattern: SplitPattern::Expression(file.pattern),
        nfc: false,
    };
    Ok(Vocabulary { tokens, added: file.special, prefix, suffix: Vec::new() })
}

fn llama2c(bytes: &[u8], _: &ModelFacts) -> Result<Vocabulary, VocabularyError> {
    let vocabulary = read_llama2c(bytes)?;
    let prefix = vocabulary.bos.into_iter().collect();
    let tokens = VocabularyTokens::Pieces { vocabulary, first_id: 0, substitutions: Vec::new() };
    Ok(Vocabulary { tokens, added: Vec::new(), prefix, suffix: Vec::new() })
}

/// The maximum distance of the id of a configured token from the end of the vocabulary.
const MAX_GAP: u32 = 1 << 16;

/// Adds the tokens that `tokenizer_config.json` lists. They replace those with the same id or text.
fn configured(
    mut added: Vec<AddedVocabularyToken>,
    count: u32,
    config: &Value,
) -> Result<Vec<AddedVocabularyToken>, VocabularyError> {
    let Some(listed) = config.get("added_tokens_decoder").and_then(Value::as_object) else {
        return Ok(added);
    };
    for (id, token) in listed {
        let Some(text) = token.get("content").and_then(Value::as_str) else { continue };
        let id: u64 = id.parse().unwrap_or(u64::MAX);
        let checked = u32::try_from(id).ok().filter(|&id| id < count.saturating_add(MAX_GAP));
        let id = checked.ok_or(VocabularyError::Id { role: "added", id, tokens: count as usize })?;
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        added.retain(|known| known.id != id && known.text != text);
        added.push(AddedVocabularyToken { id, text: text.to_owned(), special });
    }
    added.sort_by_key(|token| token.id);
    Ok(added)
}
