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

/// The number of drafts of a row if a draft model is given without one.
pub(super) const MODEL_DRAFTS: u32 = 8;

/// The number of drafts of a row if the method `mtp` is given without one: a head is trained for
/// its first guess, and the later ones are right less often.
const MTP_DRAFTS: u32 = 3;

/// The most drafts of a row by the method `mtp`.
const MAX_MTP_DRAFTS: u32 = 15;

/// The revision of a repository unless one is given.
const MAIN_REVISION: &str = "main";

/// The guesses that are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Speculation {
    /// Maximum number of drafts of a row.
    pub(super) drafts: u32,
    /// Number of tokens of ended answers in which drafts are looked for as well.
    pub(super) earlier_tokens: usize,
    /// The model that guesses, if it is one.
    pub(super) draft_model: Option<DraftModelName>,
    /// Whether the model's own head guesses.
    pub(super) mtp: bool,
}

/// The draft model on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DraftModelName {
    /// A folder, a file with a whole model, or a repository of the hub.
    pub(crate) name: String,
    /// Branch, tag or commit of a repository.
    pub(crate) revision: String,
}

impl DraftModelName {
    /// The main branch of a repository, or a folder.
    pub(super) fn new(name: String) -> Self {
        DraftModelName { name, revision: MAIN_REVISION.to_owned() }
    }
}

/// The fields that have a meaning here. Others are refused, because they ask for something else
/// than guesses from repetitions, of a draft model or of the model's own head.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeculativeConfig {
    method: Option<String>,
    num_speculative_tokens: Option<u32>,
    prompt_lookup_min: Option<u32>,
    prompt_lookup_max: Option<u32>,
    model: Option<String>,
    revision: Option<String>,
}

/// Parses the configuration.
pub(super) fn speculative_config(text: &str) -> Result<Speculation, String> {
    let config: SpeculativeConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let SpeculativeConfig { method, num_speculative_tokens: drafts, model, revision, .. } = config;
    let SpeculativeConfig { prompt_lookup_min, prompt_lookup_max, .. } = config;
    // As in vLLM, a model alone is a draft model.
    let method =
        method.as_deref().or(model.is_some().then_some("draft_model")).ok_or("missing field `method`")?;
    let is_model = method == "draft_model";
    // Older versions of vLLM have a name for each family.
    let mtp = method == "mtp" || method.ends_with("_mtp");
    let (drafts, earlier_tokens) = match method {
        "ngram" => (drafts.ok_or("missing field `num_speculative_tokens`")?, 0),
        "suffix" => (drafts.unwrap_or(SUFFIX_DRAFTS), EARLIER_TOKENS),
        "draft_model" => (drafts.unwrap_or(MODEL_DRAFTS), 0),
        _ if mtp => (drafts.unwrap_or(MTP_DRAFTS), 0),
        _ => {
            return Err(format!(
                "the method `{method}` is not supported; `ngram`, `suffix`, `mtp` and `draft_model` are"
            ));
        }
    };
    let most = if mtp { MAX_MTP_DRAFTS } else { MAX_DRAFTS };
    if drafts > most {
        return Err(format!("num_speculative_tokens is {drafts}, more than {most}"));
    }
    if !is_model && (model.is_some() || revision.is_some()) {
        return Err(format!("the method `{method}` needs no model; `draft_model` does"));
    }
    if (is_model || mtp) && (prompt_lookup_min.is_some() || prompt_lookup_max.is_some()) {
        return Err(format!("the method `{method}` looks nothing up in the prompt"));
    }
    if prompt_lookup_min.is_some_and(|min| min > GRAM) || prompt_lookup_max.is_some_and(|max| max < GRAM) {
        return Err(format!("the text is searched for {GRAM} tokens, and no other number can be given"));
    }
    let name = match is_model {
        true => Some(model.ok_or("missing field `model`")?),
        false => None,
    };
    let draft_model = name.map(|name| {
        let named = DraftModelName::new(name);
        DraftModelName { revision: revision.unwrap_or(named.revision), ..named }
    });
    Ok(Speculation { drafts, earlier_tokens, draft_model, mtp })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_for_repetitions_gives_the_number_of_drafts() {
        let of = |rest: &str| speculative_config(&format!(r#"{{"method": "ngram", {rest}}}"#));
        let own = |drafts| Ok(Speculation { drafts, earlier_tokens: 0, draft_model: None, mtp: false });
        assert_eq!(of(r#""num_speculative_tokens": 4"#), own(4));
        let bounds = r#""num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4"#;
        assert_eq!(of(bounds), own(5));
        let with_earlier = |drafts| {
            Ok(Speculation { drafts, earlier_tokens: EARLIER_TOKENS, draft_model: None, mtp: false })
        };
        assert_eq!(speculative_config(r#"{"method": "suffix"}"#), with_earlier(SUFFIX_DRAFTS));
        let eight = r#"{"method": "suffix", "num_speculative_tokens": 8}"#;
        assert_eq!(speculative_config(eight), with_earlier(8));
        for (rest, reason) in [
            (r#""num_speculative_tokens": 33"#, "more than 32"),
            (r#""num_speculative_tokens": 4, "prompt_lookup_max": 2"#, "searched for 3 tokens"),
            (r#""num_speculative_tokens": 4, "model": "draft""#, "`ngram` needs no model"),
            (r#""num_speculative_tokens": 4, "quantization": "awq""#, "unknown field `quantization`"),
            (r#""prompt_lookup_max": 4"#, "missing field `num_speculative_tokens`"),
        ] {
            let error = of(rest).unwrap_err();
            assert!(error.contains(reason), "{rest}: {error}");
        }
        let eagle = speculative_config(r#"{"method": "eagle3", "num_speculative_tokens": 3}"#).unwrap_err();
        assert!(eagle.contains("the method `eagle3` is not supported"), "{eagle}");
    }

    #[test]
    fn a_configuration_with_a_model_names_the_draft_model() {
        let model = |drafts, name: &str, revision: &str| {
            let draft_model = Some(DraftModelName { name: name.into(), revision: revision.into() });
            Ok(Speculation { drafts, earlier_tokens: 0, draft_model, mtp: false })
        };
        let alone = r#"{"model": "org/small", "num_speculative_tokens": 3}"#;
        assert_eq!(speculative_config(alone), model(3, "org/small", "main"));
        let whole = r#"{"method": "draft_model", "model": "/models/small", "revision": "v2"}"#;
        assert_eq!(speculative_config(whole), model(MODEL_DRAFTS, "/models/small", "v2"));
        for (text, reason) in [
            (r#"{"method": "draft_model"}"#, "missing field `model`"),
            (r#"{"num_speculative_tokens": 3}"#, "missing field `method`"),
            (r#"{"model": "a/b", "prompt_lookup_max": 4}"#, "looks nothing up"),
            (r#"{"method": "suffix", "revision": "x"}"#, "`suffix` needs no model"),
        ] {
            let error = speculative_config(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_configuration_for_the_model_s_own_head_has_no_model() {
        let own = |drafts| Ok(Speculation { drafts, earlier_tokens: 0, draft_model: None, mtp: true });
        assert_eq!(speculative_config(r#"{"method": "mtp"}"#), own(MTP_DRAFTS));
        let older = r#"{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}"#;
        assert_eq!(speculative_config(older), own(2));
        for (text, reason) in [
            (r#"{"method": "mtp", "model": "a/b"}"#, "`mtp` needs no model"),
            (r#"{"method": "mtp", "num_speculative_tokens": 16}"#, "more than 15"),
            (r#"{"method": "mtp", "prompt_lookup_min": 2}"#, "looks nothing up"),
        ] {
            let error = speculative_config(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
