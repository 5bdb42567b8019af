//! Names of other servers' flags, for the hint in the error about an unknown flag.

/// Flags of vLLM, SGLang, llama.cpp or Ollama that Millrace does not have, each with the closest
/// flag of `millrace serve`.
const FLAGS: &[(&str, &str)] = &[
    ("allowed-origins", "cors-allow-origin"),
    ("batch-size", "max-batch-size"),
    ("chat-template", "tokenizer-config-path"),
    ("chunked-prefill-size", "max-batch-prefill-tokens"),
    ("context-length", "max-model-len"),
    ("context-size", "ctx-size"),
    ("download-dir", "huggingface-hub-cache"),
    ("gpu-memory-utilization", "cuda-memory-fraction"),
    ("gpus", "num-shard"),
    ("max-context-len", "max-model-len"),
    ("max-context-length", "max-model-len"),
    ("max-model-length", "max-model-len"),
    ("max-num-batched-tokens", "max-batch-prefill-tokens"),
    ("max-running-requests", "max-batch-size"),
    ("max-seq-len", "max-model-len"),
    ("max-sequence-length", "max-model-len"),
    ("mem-fraction-static", "cuda-memory-fraction"),
    ("model-name", "served-model-name"),
    ("model-path", "model-id"),
    ("n-ctx", "ctx-size"),
    ("n-parallel", "parallel"),
    ("num-ctx", "ctx-size"),
    ("ssl-certfile", "tls-cert"),
    ("ssl-keyfile", "tls-key"),
    ("tensor-parallel", "tensor-parallel-size"),
    ("tp", "tensor-parallel-size"),
    ("tp-size", "tensor-parallel-size"),
];

/// Returns the flag of Millrace that is closest to a flag of another server. Both are without
/// dashes.
pub(crate) fn known_elsewhere(flag: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(theirs, _)| *theirs == flag).map(|&(_, ours)| ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn hints_name_flags_that_exist_for_flags_that_do_not() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let exists = |flag: &str| {
            serve.get_arguments().any(|argument| {
                argument.get_long() == Some(flag)
                    || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&flag))
            })
        };
        for (theirs, ours) in FLAGS {
            assert!(exists(ours), "--{ours} is no flag");
            assert!(!exists(theirs), "--{theirs} is a flag");
        }
    }
}
