//! How the router may divide and share the prompts of a model.

use millrace_model::DecoderSpec;
use millrace_proto::PromptHandling;

/// Returns how the router may divide and share the prompts of a model.
pub(crate) fn prompt_handling(spec: &DecoderSpec) -> PromptHandling {
    if spec.is_bidirectional() {
        PromptHandling::Whole
    } else if spec.is_recurrent() {
        PromptHandling::Unshared
    } else {
        PromptHandling::Shared
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millrace_formats::Source;

    use super::*;
    use millrace_model::families;

    #[test]
    fn states_and_mutual_attention_keep_prompts_together() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration-tests");
        for (folder, want) in [
            ("golden/llama_tied", PromptHandling::Shared),
            ("golden/qwen3_5_text", PromptHandling::Unshared),
            ("golden-encoders/bert", PromptHandling::Whole),
        ] {
            let spec = families::spec(&Source::Directory(golden.join(folder))).unwrap();
            assert_eq!(prompt_handling(&spec), want, "{folder}");
        }
    }
}
