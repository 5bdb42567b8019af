//! The settings that all ranks of a group must share.
//!
//! The ranks of one machine get the same options from one launcher. Other machines may have been
//! started with other flags, with another model, or with a model whose files differ.

use millrace_proto::Ready;

/// A setting that two ranks announce differently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the shards differ in {setting}: rank 0 has {expected}, and rank {rank} has {found}; all machines need the same model \
     and flags"
)]
pub(super) struct Disagreement {
    /// Name of the setting.
    pub(super) setting: &'static str,
    /// Value of rank 0.
    pub(super) expected: String,
    /// The first rank whose value differs.
    pub(super) rank: usize,
    /// The value of that rank.
    pub(super) found: String,
}

/// Checks that all ranks announce the same settings. `announced` is in the order of the ranks.
///
/// # Errors
/// The first setting that differs.
pub(super) fn check(announced: &[Ready]) -> Result<(), Disagreement> {
    let Some(first) = announced.first() else { return Ok(()) };
    for (rank, other) in announced.iter().enumerate() {
        for ((setting, expected), (_, found)) in settings(first).into_iter().zip(settings(other)) {
            if expected != found {
                return Err(Disagreement { setting, expected, rank, found });
            }
        }
    }
    Ok(())
}

/// The settings of a rank, with their names.
fn settings(ready: &Ready) -> [(&'static str, String); 15] {
    // An empty text would be invisible in a message.
    let text = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    [
        ("the number of parameters", ready.parameters.to_string()),
        ("the vocabulary size", ready.vocab_size.to_string()),
        ("--dtype", text(&ready.dtype)),
        ("--quantize", text(&ready.quantize)),
        ("--activations", text(&ready.activations)),
        ("the rotary positions", text(&ready.rotation)),
        ("--kv-cache-dtype", text(&ready.kv_cache_dtype)),
        ("the block size of the KV cache", ready.block_size.to_string()),
        ("--max-batch-size", ready.max_sequences.to_string()),
        ("the number of tokens per step", ready.max_step_tokens.to_string()),
        ("--state-checkpoints", ready.state_checkpoints.to_string()),
        ("--max-loras", ready.adapters.to_string()),
        ("--max-cpu-loras", ready.max_loaded_adapters.to_string()),
        ("--speculate", ready.max_drafts.to_string()),
        ("the handling of prompts", ready.prompt_handling().as_str_name().to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use millrace_proto::PromptHandling;

    use super::*;

    fn ready() -> Ready {
        Ready { dtype: "bfloat16".into(), vocab_size: 32, max_step_tokens: 576, ..Ready::default() }
    }

    #[test]
    fn ranks_that_agree_may_differ_in_memory() {
        let smaller = Ready { num_blocks: 7, max_sequence_tokens: 9, ..ready() };
        assert_eq!(check(&[ready(), smaller, ready()]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn a_disagreement_names_the_setting_and_both_values() {
        let told = |other: Ready| check(&[ready(), ready(), other]).unwrap_err().to_string();
        assert_eq!(
            told(Ready { dtype: "float16".into(), ..ready() }),
            "the shards differ in --dtype: rank 0 has bfloat16, and rank 2 has float16; all machines need the same model \
             and flags"
        );
        let quantized = told(Ready { quantize: "fp8".into(), ..ready() });
        let exact = told(Ready { activations: "exact".into(), ..ready() });
        assert!(exact.contains("in --activations: rank 0 has none, and rank 2 has exact"), "{exact}");
        assert!(quantized.contains("in --quantize: rank 0 has none, and rank 2 has fp8"), "{quantized}");
        let step = told(Ready { max_step_tokens: 64, ..ready() });
        assert!(step.contains("tokens per step: rank 0 has 576, and rank 2 has 64"), "{step}");
        let whole = told(Ready { prompt_handling: PromptHandling::Whole.into(), ..ready() });
        assert!(whole.contains("the handling of prompts: rank 0 has PROMPT_HANDLING_SHARED"), "{whole}");
    }
}
