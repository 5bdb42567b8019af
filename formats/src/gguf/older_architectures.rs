//! The architectures of the families before Llama.

use super::adapt::older;
use super::architecture::{Architecture, LAYER_NORM, PLAIN};
use super::older_names;

/// A GPT-2, or a model in its layout.
const GPT2: Architecture = Architecture {
    name: "gpt2",
    model_type: "gpt2",
    class: "GPT2LMHeadModel",
    epsilon: LAYER_NORM,
    by_output: true,
    naming: older_names::GPT2,
    adapt: older::gpt2,
    ..PLAIN
};

/// The families before Llama, and the first Qwen, whose names are those of GPT-2.
pub(super) const OLDER: &[Architecture] = &[
    GPT2,
    Architecture {
        name: "qwen",
        model_type: "qwen",
        class: "QWenLMHeadModel",
        epsilon: ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
        naming: older_names::QWEN,
        adapt: older::qwen,
        ..PLAIN
    },
    Architecture {
        name: "starcoder",
        model_type: "gpt_bigcode",
        class: "GPTBigCodeForCausalLM",
        by_output: false,
        adapt: older::starcoder,
        ..GPT2
    },
    Architecture {
        name: "gptneox",
        model_type: "gpt_neox",
        class: "GPTNeoXForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "layer_norm_eps"),
        stacked_qkv: true,
        naming: older_names::GPT_NEOX,
        adapt: older::gpt_neox,
        ..PLAIN
    },
    Architecture {
        name: "bloom",
        model_type: "bloom",
        class: "BloomForCausalLM",
        epsilon: LAYER_NORM,
        stacked_qkv: true,
        has_linear_biases: true,
        naming: older_names::BLOOM,
        adapt: older::bloom,
        ..PLAIN
    },
    Architecture {
        name: "falcon",
        model_type: "falcon",
        class: "FalconForCausalLM",
        epsilon: LAYER_NORM,
        stacked_qkv: true,
        naming: older_names::BLOOM,
        adapt: older::falcon,
        ..PLAIN
    },
    Architecture {
        name: "mpt",
        model_type: "mpt",
        class: "MptForCausalLM",
        epsilon: LAYER_NORM,
        has_linear_biases: true,
        naming: older_names::MPT,
        adapt: older::mpt,
        ..PLAIN
    },
];
