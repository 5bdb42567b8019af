//! The regular expressions that split texts before bytes are merged, by the names that GGUF files
//! have for them.

use serde_json::Value;

/// A pattern, and the names by which GGUF files refer to it.
struct NamedPattern {
    /// A file gets the first name that fits.
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
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

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
            "modern-bert",
            "roberta-bpe",
        ],
        expressions: &[GPT2],
    },
    NamedPattern {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "dbrx",
            "smaug-bpe",
            "chatglm-bpe",
            "glm4",
            "glm5",
            "jina-v5-nano",
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

/// The names of patterns whose words become a token if they are one, even if the merges do not lead
/// to it.
const IGNORE_MERGES: [&str; 12] = [
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "glm4",
    "glm5",
    "tekken",
];

/// Returns whether a word that is a token becomes that token, even if the merges do not lead to it.
pub fn ignores_merges(name: &str) -> bool {
    IGNORE_MERGES.contains(&name)
}

/// Returns the expressions of a pattern. Each splits the parts that the one before it left.
pub fn split_expressions(name: &str) -> Option<&'static [&'static str]> {
    GGUF.iter().find(|pattern| pattern.names.contains(&name)).map(|pattern| pattern.expressions)
}

/// Returns the name of the pattern that splits texts as the pre-tokenizer of a `tokenizer.json`
/// does, if there is one. The tokenizer may ignore merges for words that are a token.
pub(super) fn pattern_name(pre_tokenizer: &Value, ignores: bool) -> Option<&'static str> {
    let expressions = expressions(pre_tokenizer)?;
    let is_it = |pattern: &&NamedPattern| {
        let known = pattern.expressions.iter().map(|known| (*known).to_owned());
        known.eq(expressions.iter().cloned())
    };
    let pattern = GGUF.iter().find(is_it)?;
    pattern.names.iter().copied().find(|name| ignores_merges(name) == ignores)
}

/// Returns the expressions by which a pre-tokenizer splits a text before it writes its bytes as
/// characters. Returns `None` if it does anything else too.
fn expressions(pre_tokenizer: &Value) -> Option<Vec<String>> {
    let steps = match pre_tokenizer.get("pretokenizers").and_then(Value::as_array) {
        Some(steps) => &steps[..],
        None => std::slice::from_ref(pre_tokenizer),
    };
    let (bytes, splits) = steps.split_last()?;
    let is_on = |step: &Value, key: &str, usual: bool| step.get(key).map_or(Some(usual), Value::as_bool);
    if bytes.get("type")? != "ByteLevel" || is_on(bytes, "add_prefix_space", true)? {
        return None;
    }
    let mut found = Vec::new();
    for step in splits {
        found.push(match step.get("type")?.as_str()? {
            "Digits" if is_on(step, "individual_digits", false)? => r"\p{N}".to_owned(),
            "Split" if keeps_all(step, splits.len())? => visible(step.pointer("/pattern/Regex")?.as_str()?),
            _ => return None,
        });
    }
    if is_on(bytes, "use_regex", true)? {
        found.push(GPT2.to_owned());
    }
    Some(found)
}

/// Returns whether a step among `steps` of them splits a text and drops none of it. A pattern that
/// stands alone matches all text, so that what it does not match may be said to be removed.
fn keeps_all(step: &Value, steps: usize) -> Option<bool> {
    let is_inverted = step.get("invert").map_or(Some(false), Value::as_bool)?;
    match step.get("behavior")?.as_str()? {
        "Isolated" => Some(!is_inverted),
        "Removed" => Some(is_inverted && steps == 1),
        _ => None,
    }
}

/// Writes line ends in an expression as the escapes that have the same meaning.
fn visible(expression: &str) -> String {
    expression.replace('\r', r"\r").replace('\n', r"\n").replace('\t', r"\t")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_gguf_files_occur_once() {
        let names: Vec<_> = GGUF.iter().flat_map(|pattern| pattern.names).collect();
        let unique: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(IGNORE_MERGES.iter().all(|name| split_expressions(name).is_some()));
        assert!(split_expressions("unheard-of").is_none());
    }

    fn split(expression: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false})
    }

    fn bytes(use_regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    fn sequence(steps: &[Value]) -> Value {
        json!({"type": "Sequence", "pretokenizers": steps})
    }

    /// The first name of each pattern is written for a tokenizer with its expressions.
    #[test]
    fn equal_expressions_have_a_name() {
        for pattern in GGUF {
            let steps: Vec<Value> = pattern.expressions.iter().map(|expression| split(expression)).collect();
            let pre = sequence(&[&steps[..], &[bytes(false)]].concat());
            for ignores in [true, false] {
                let name = pattern.names.iter().copied().find(|name| ignores_merges(name) == ignores);
                assert_eq!(pattern_name(&pre, ignores), name);
            }
        }
        assert_eq!(pattern_name(&bytes(true), false), Some("gpt-2"));
        let digits = json!({"type": "Digits", "individual_digits": true});
        assert_eq!(pattern_name(&sequence(&[digits, bytes(true)]), false), Some("starcoder"));
        // The tokenizer.json of DeepSeek-V3 has line ends themselves, and others their escapes.
        let last = DEEPSEEK3.replace(r"\r", "\r").replace(r"\n", "\n");
        let expressions = [r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", &last];
        let steps: Vec<Value> = expressions.iter().map(|expression| split(expression)).collect();
        let pre = sequence(&[&steps[..], &[bytes(false)]].concat());
        assert_eq!(pattern_name(&pre, false), Some("deepseek-v3"));
    }

    #[test]
    fn other_pre_tokenizers_have_no_name() {
        let matched = |behavior: &str, invert: bool| {
            let mut step = split(QWEN);
            (step["behavior"], step["invert"]) = (json!(behavior), json!(invert));
            step
        };
        let removed = sequence(&[matched("Removed", true), bytes(false)]);
        assert_eq!(pattern_name(&removed, false), Some("qwen2"));
        for pre in [
            sequence(&[matched("Removed", false), bytes(false)]),
            sequence(&[matched("Isolated", true), bytes(false)]),
            sequence(&[matched("MergedWithNext", false), bytes(false)]),
            sequence(&[split(QWEN), bytes(true)]),
            sequence(&[split(r"\p{N}x"), bytes(false)]),
            sequence(&[json!({"type": "Digits", "individual_digits": false}), bytes(true)]),
            sequence(&[split(QWEN)]),
            json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}),
            json!({"type": "Whitespace"}),
        ] {
            assert_eq!(pattern_name(&pre, false), None, "{pre}");
        }
    }
}
