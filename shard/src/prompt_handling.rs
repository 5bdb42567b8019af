//! How the router may divide and share the prompts of a model, and whether it may guess tokens.

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

/// Returns why steps of the model on a device cannot verify drafts; `None` if they can. The device
/// takes up to `steps_ahead` steps at once, and has so many checkpoints of recurrent states.
pub(crate) fn no_drafts(
    spec: &DecoderSpec,
    steps_ahead: usize,
    state_checkpoints: Option<usize>,
) -> Option<&'static str> {
    match prompt_handling(spec) {
        PromptHandling::Whole => Some("the tokens of a prompt attend to the ones after them"),
        _ if spec.head.is_absent => Some("the model generates no text"),
        // Such a device appends the tokens that it samples itself.
        _ if steps_ahead > 1 => Some("drafts are only verified on the CPU"),
        PromptHandling::Unshared if state_checkpoints == Some(0) => {
            Some("recurrent layers go back to a checkpoint after a wrong draft, and there are none")
        }
        PromptHandling::Unshared | PromptHandling::Shared => None,
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
            assert_eq!(no_drafts(&spec, 1, None).is_none(), want != PromptHandling::Whole, "{folder}");
            assert_eq!(no_drafts(&spec, 1, Some(0)).is_none(), want == PromptHandling::Shared, "{folder}");
            assert!(no_drafts(&spec, 2, None).is_some(), "{folder}");
        }
    }
}
