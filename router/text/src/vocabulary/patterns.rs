//! The regular expressions that split texts before bytes are merged.

/// A pattern, and the names by which GGUF files refer to it.
struct NamedPattern {
    names: &'static [&'static str],
    /// Each expression splits the parts that the one before it left.
    expressions: &'static [&'static str],
}

/// GPT-2's pattern.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Llama 3's pattern, with at most three digits together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen's pattern, with each digit alone.
const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The pattern of Qwen3.5, whose words may contain combining marks.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Kimi's pattern: Han characters apart, and words split before capital letters.
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Tekken's pattern, with each digit alone.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The pattern of gpt-4o and Llama 4.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The last pattern of DeepSeek V3.
const DEEPSEEK3: &str = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The patterns of GGUF files. Kinds that are not listed are refused, because another pattern would
/// silently change the tokens.
const GGUF: &[NamedPattern] = &[
    NamedPattern {
        names: &["default"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    },
    NamedPattern {
        names: &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
            "trillion",
            "granite-docling",
            "a.x-4.0",
            "mellum",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
        ],
        expressions: &[GPT2],
    },
    NamedPattern {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "dbrx",
            "smaug-bpe",
            "chatglm-bpe",
            "glm4",
        ],
        expressions: &[LLAMA3],
    },
    NamedPattern {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez", "hunyuan", "grok-2"],
        expressions: &[QWEN],
    },
    NamedPattern { names: &["qwen35"], expressions: &[QWEN35] },
    NamedPattern { names: &["tekken"], expressions: &[TEKKEN] },
    NamedPattern { names: &["kimi-k2"], expressions: &[KIMI] },
    NamedPattern { names: &["gpt-4o", "llama4", "minimax-m2"], expressions: &[GPT4O] },
    NamedPattern {
        names: &["deepseek-v3", "hunyuan-dense"],
        expressions: &[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK3],
    },
    NamedPattern {
        names: &["deepseek-coder"],
        expressions: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{D7FF}]+", r"\p{N}"],
    },
    NamedPattern { names: &["falcon"], expressions: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"] },
    NamedPattern {
        names: &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"],
        expressions: &[r"\p{N}", GPT2],
    },
];

/// Whether a word that is a token becomes that token, even if the merges do not lead to it.
pub(super) fn ignores_merges(name: &str) -> bool {
    ["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"]
        .contains(&name)
}

/// Returns the expressions of a pattern, one after the other.
pub(super) fn named(name: &str) -> Option<&'static [&'static str]> {
    GGUF.iter().find(|pattern| pattern.names.contains(&name)).map(|pattern| pattern.expressions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(expression: &str, text: &str) -> Vec<String> {
        use tokenizers::{
            PreTokenizedString, PreTokenizer, SplitDelimiterBehavior, pre_tokenizers::split::*,
        };
        let split =
            Split::new(SplitPattern::Regex(expression.into()), SplitDelimiterBehavior::Isolated, false)
                .unwrap();
        let mut text = PreTokenizedString::from(text);
        split.pre_tokenize(&mut text).unwrap();
        let parts = text.get_splits(tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
        parts.iter().map(|(part, ..)| (*part).to_owned()).collect()
    }

    #[test]
    fn patterns_differ_in_digits_capitals_and_han() {
        assert_eq!(parts(GPT2, "It's 12345"), ["It", "'s", " 12345"]);
        assert_eq!(parts(LLAMA3, "It'S 12345"), ["It", "'S", " ", "123", "45"]);
        assert_eq!(parts(QWEN, "a 123\n\nb"), ["a", " ", "1", "2", "3", "\n\n", "b"]);
        let marked = "cafe\u{301}s 1";
        assert_eq!(parts(QWEN, marked), ["cafe", "\u{301}s", " ", "1"]);
        assert_eq!(parts(QWEN35, marked), ["cafe\u{301}s", " ", "1"]);
        assert_eq!(parts(KIMI, "中文English混合 itsHere's"), ["中文", "English", "混合", " its", "Here's"]);
        assert_eq!(parts(TEKKEN, "itsHere 12"), ["its", "Here", " ", "1", "2"]);
    }

    #[test]
    fn names_of_gguf_files_occur_once() {
        let names: Vec<_> = GGUF.iter().flat_map(|pattern| pattern.names).collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(named("llama-bpe").is_some() && named("unheard-of").is_none());
    }
}
