//! The value of `--speculative-config`, vLLM's flag for speculation.

use serde::Deserialize;

/// The most drafts of a row.
pub(super) const MAX_DRAFTS: u32 = 32;

/// Number of tokens that must have stood together before for a guess.
const GRAM: u32 = 3;

/// The number of drafts of a row if the method `suffix` is given without one: the cost model
/// chooses how many of them a step has.
const SUFFIX_DRAFTS: u32 = 16;

/// Number of tokens of ended answers that the method `suffix` keeps for each group of shards, which
/// take at most about 8 MB.
const EARLIER_TOKENS: usize = 1 << 17;

/// The guesses that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Speculation {
    /// Maximum number of drafts of a row.
    pub(super) drafts: u32,
    /// Number of tokens of ended answers in which drafts are looked for as well.
    pub(super) earlier_tokens: usize,
}

/// The fields that have a meaning here. Others are refused, because they ask for something else
/// than guesses from repetitions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeculativeConfig {
    method: String,
    num_speculative_tokens: Option<u32>,
    prompt_lookup_min: Option<u32>,
    prompt_lookup_max: Option<u32>,
}

/// Parses the configuration.
pub(super) fn speculative_config(text: &str) -> Result<Speculation, String> {
    let config: SpeculativeConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let SpeculativeConfig { method, num_speculative_tokens: drafts, prompt_lookup_min, prompt_lookup_max } =
        config;
    let (drafts, earlier_tokens) = match method.as_str() {
        "ngram" => (drafts.ok_or("missing field `num_speculative_tokens`")?, 0),
        "suffix" => (drafts.unwrap_or(SUFFIX_DRAFTS), EARLIER_TOKENS),
        _ => return Err(format!("the method `{method}` is not supported; `ngram` and `suffix` are")),
    };
    if drafts > MAX_DRAFTS {
        return Err(format!("num_speculative_tokens is {drafts}, more than {MAX_DRAFTS}"));
    }
    if prompt_lookup_min.is_some_and(|min| min > GRAM) || prompt_lookup_max.is_some_and(|max| max < GRAM) {
        return Err(format!("the text is searched for {GRAM} tokens, and no other number can be given"));
    }
    Ok(Speculation { drafts, earlier_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_for_repetitions_gives_the_number_of_drafts() {
        let of = |rest: &str| speculative_config(&format!(r#"{{"method": "ngram", {rest}}}"#));
        let own = |drafts| Ok(Speculation { drafts, earlier_tokens: 0 });
        assert_eq!(of(r#""num_speculative_tokens": 4"#), own(4));
        let bounds = r#""num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4"#;
        assert_eq!(of(bounds), own(5));
        let with_earlier = |drafts| Ok(Speculation { drafts, earlier_tokens: EARLIER_TOKENS });
        assert_eq!(speculative_config(r#"{"method": "suffix"}"#), with_earlier(SUFFIX_DRAFTS));
        let eight = r#"{"method": "suffix", "num_speculative_tokens": 8}"#;
        assert_eq!(speculative_config(eight), with_earlier(8));
        for (rest, reason) in [
            (r#""num_speculative_tokens": 33"#, "more than 32"),
            (r#""num_speculative_tokens": 4, "prompt_lookup_max": 2"#, "searched for 3 tokens"),
            (r#""num_speculative_tokens": 4, "model": "draft""#, "unknown field `model`"),
            (r#""prompt_lookup_max": 4"#, "missing field `num_speculative_tokens`"),
        ] {
            let error = of(rest).unwrap_err();
            assert!(error.contains(reason), "{rest}: {error}");
        }
        let eagle = speculative_config(r#"{"method": "eagle3", "num_speculative_tokens": 3}"#).unwrap_err();
        assert!(eagle.contains("the method `eagle3` is not supported"), "{eagle}");
    }
}
