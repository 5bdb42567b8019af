//! The architectures whose files can be read: a row for each, with its names and keys.

use super::adapt::{dense, experts, gemma, hybrids, latent};
use super::architecture::{Architecture, LLAMA, PLAIN, Window};
use super::encoder_architectures::ENCODERS;
use super::model::KvHeads;
use super::names;
use super::older_architectures::OLDER;

/// All architectures.
pub(super) fn all() -> impl Iterator<Item = &'static Architecture> {
    [ARCHITECTURES, OLDER, ENCODERS].into_iter().flatten()
}

/// A model whose layers are gated delta nets or gated attention.
const DELTA_NET: Architecture = Architecture {
    naming: names::DELTA_NET,
    norms_plus_one: true,
    kv_heads: KvHeads::SomeLayers,
    adapt: hybrids::delta_net,
    ..PLAIN
};

/// A model with short convolutions between layers of attention.
const LFM2: Architecture = Architecture {
    name: "lfm2",
    model_type: "lfm2",
    class: "Lfm2ForCausalLM",
    epsilon: ("attention.layer_norm_rms_epsilon", "norm_eps"),
    naming: names::LFM2,
    kv_heads: KvHeads::SomeLayers,
    adapt: hybrids::lfm2,
    ..PLAIN
};

const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    model_type: "nemotron_h",
    class: "NemotronHForCausalLM",
    naming: names::NEMOTRON_H,
    epsilon: ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
    kv_heads: KvHeads::SomeLayers,
    adapt: hybrids::nemotron_h,
    ..PLAIN
};

const ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    // With query, key and value in tensors of their own, Baichuan 7B is a Llama.
    Architecture { name: "baichuan", also: &["baichuan"], interleaved: true, ..PLAIN },
    // The original model has query, key and value in one tensor by groups of heads.
    Architecture {
        name: "internlm2",
        model_type: "internlm2",
        class: "InternLM2ForCausalLM",
        interleaved: true,
        naming: names::INTERNLM2,
        adapt: dense::internlm2,
        ..PLAIN
    },
    Architecture { name: "qwen2", model_type: "qwen2", class: "Qwen2ForCausalLM", ..PLAIN },
    Architecture { name: "qwen3", model_type: "qwen3", class: "Qwen3ForCausalLM", ..PLAIN },
    Architecture {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        class: "Qwen2MoeForCausalLM",
        has_experts: true,
        naming: names::QWEN_MOE,
        adapt: experts::qwen2_moe,
        ..PLAIN
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        // The text part of a model with images.
        also: &["qwen3_vl_moe_text"],
        has_experts: true,
        naming: names::QWEN_MOE,
        adapt: experts::qwen3_moe,
        ..PLAIN
    },
    Architecture {
        name: "chatglm",
        model_type: "chatglm",
        class: "ChatGLMForConditionalGeneration",
        naming: names::CHATGLM,
        ..PLAIN
    },
    // Files of this model are read like files of the row before. Both compute the same.
    Architecture { name: "chatglm", model_type: "glm", class: "GlmForCausalLM", naming: names::GLM, ..PLAIN },
    Architecture {
        name: "gemma",
        model_type: "gemma",
        class: "GemmaForCausalLM",
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        class: "Gemma2ForCausalLM",
        norms_plus_one: true,
        naming: names::SANDWICH,
        window: Window::ByFamily,
        adapt: gemma::gemma2,
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        norms_plus_one: true,
        naming: names::SANDWICH,
        window: Window::ByFamily,
        adapt: gemma::gemma3,
        ..PLAIN
    },
    Architecture {
        name: "gemma4",
        model_type: "gemma4_text",
        class: "Gemma4ForCausalLM",
        has_experts: true,
        naming: names::GEMMA4,
        window: Window::ByFamily,
        kv_heads: KvHeads::EachLayer,
        adapt: gemma::gemma4,
        ..PLAIN
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        class: "Phi3ForCausalLM",
        naming: names::PHI3,
        window: Window::ByFamily,
        adapt: dense::phi3,
        ..PLAIN
    },
    Architecture {
        name: "granite",
        model_type: "granite",
        class: "GraniteForCausalLM",
        interleaved: true,
        adapt: dense::granite,
        ..PLAIN
    },
    // The original model rotates neighbors too.
    Architecture {
        name: "command-r",
        model_type: "cohere",
        class: "CohereForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "layer_norm_eps"),
        adapt: dense::cohere,
        ..PLAIN
    },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        class: "Starcoder2ForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "norm_epsilon"),
        naming: names::STARCODER2,
        window: Window::ByFamily,
        adapt: dense::starcoder2,
        ..PLAIN
    },
    Architecture {
        name: "stablelm",
        model_type: "stablelm",
        class: "StableLmForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "layer_norm_eps"),
        adapt: dense::stablelm,
        ..PLAIN
    },
    Architecture {
        name: "olmo2",
        model_type: "olmo2",
        class: "Olmo2ForCausalLM",
        also: &["olmo3"],
        naming: names::OLMO2,
        window: Window::ByFamily,
        adapt: dense::olmo2,
        ..PLAIN
    },
    // The text parts of models with images. A text has equal positions in all dimensions.
    Architecture { name: "qwen2vl", model_type: "qwen2", class: "Qwen2ForCausalLM", ..PLAIN },
    Architecture { name: "qwen3vl", model_type: "qwen3", class: "Qwen3ForCausalLM", ..PLAIN },
    Architecture {
        name: "qwen3vlmoe",
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        has_experts: true,
        naming: names::QWEN_MOE,
        adapt: experts::qwen3_moe,
        ..PLAIN
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        class: "GptOssForCausalLM",
        has_experts: true,
        naming: names::GPT_OSS,
        window: Window::ByFamily,
        adapt: experts::gpt_oss,
        ..PLAIN
    },
    Architecture {
        name: "glm4",
        model_type: "glm4",
        class: "Glm4ForCausalLM",
        // The text part of a model with images. A text has equal positions in all dimensions.
        also: &["glm4v_text"],
        naming: names::GLM4,
        adapt: dense::glm4,
        ..PLAIN
    },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        class: "Glm4MoeForCausalLM",
        also: &["solar_open"],
        has_experts: true,
        naming: names::GLM4_MOE,
        adapt: experts::glm4_moe,
        ..PLAIN
    },
    // The original models rotate neighbors too.
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v3",
        class: "DeepseekV3ForCausalLM",
        also: &["deepseek_v2", "kimi_k2", "glm4_moe_lite", "youtu"],
        has_experts: true,
        naming: names::DEEPSEEK2,
        adapt: latent::deepseek2,
        ..PLAIN
    },
    Architecture {
        name: "kimi-linear",
        model_type: "kimi_linear",
        class: "KimiLinearForCausalLM",
        has_experts: true,
        naming: names::KIMI_LINEAR,
        kv_heads: KvHeads::SomeLayers,
        adapt: latent::kimi_linear,
        ..PLAIN
    },
    Architecture {
        name: "glm-dsa",
        model_type: "glm_moe_dsa",
        class: "GlmMoeDsaForCausalLM",
        has_experts: true,
        naming: names::GLM_DSA,
        is_only_read: true,
        adapt: latent::glm_dsa,
        ..PLAIN
    },
    Architecture {
        name: "minimax-m2",
        model_type: "minimax_m2",
        class: "MiniMaxM2ForCausalLM",
        has_experts: true,
        naming: names::MINIMAX_M2,
        adapt: experts::minimax_m2,
        ..PLAIN
    },
    Architecture {
        name: "granitemoe",
        model_type: "granitemoe",
        class: "GraniteMoeForCausalLM",
        interleaved: true,
        has_experts: true,
        naming: names::GRANITE_MOE,
        adapt: experts::granite_moe,
        ..PLAIN
    },
    Architecture {
        name: "cohere2",
        model_type: "cohere2",
        class: "Cohere2ForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "layer_norm_eps"),
        window: Window::ByFamily,
        adapt: dense::cohere2,
        ..PLAIN
    },
    Architecture {
        name: "smollm3",
        model_type: "smollm3",
        class: "SmolLM3ForCausalLM",
        interleaved: true,
        adapt: dense::smollm3,
        ..PLAIN
    },
    Architecture {
        name: "exaone4",
        model_type: "exaone4",
        class: "Exaone4ForCausalLM",
        naming: names::OLMO2,
        window: Window::ByFamily,
        adapt: dense::exaone4,
        ..PLAIN
    },
    Architecture {
        name: "seed_oss",
        model_type: "seed_oss",
        class: "SeedOssForCausalLM",
        naming: names::SEED_OSS,
        adapt: dense::seed_oss,
        ..PLAIN
    },
    Architecture {
        name: "mistral3",
        model_type: "ministral3",
        class: "Ministral3ForCausalLM",
        interleaved: true,
        window: Window::ByFamily,
        adapt: dense::mistral3,
        ..PLAIN
    },
    LFM2,
    Architecture {
        name: "lfm2moe",
        model_type: "lfm2_moe",
        class: "Lfm2MoeForCausalLM",
        has_experts: true,
        adapt: hybrids::lfm2_moe,
        ..LFM2
    },
    Architecture {
        name: "dots1",
        model_type: "dots1",
        class: "Dots1ForCausalLM",
        has_experts: true,
        naming: names::DOTS1,
        adapt: experts::dots1,
        ..PLAIN
    },
    Architecture {
        name: "olmoe",
        model_type: "olmoe",
        class: "OlmoeForCausalLM",
        has_experts: true,
        naming: names::QWEN_MOE,
        adapt: experts::olmoe,
        ..PLAIN
    },
    Architecture {
        name: "arcee",
        model_type: "arcee",
        class: "ArceeForCausalLM",
        interleaved: true,
        adapt: dense::arcee,
        ..PLAIN
    },
    Architecture {
        name: "ernie4_5",
        model_type: "ernie4_5",
        class: "Ernie4_5ForCausalLM",
        adapt: dense::ernie4_5,
        ..PLAIN
    },
    Architecture {
        name: "ernie4_5-moe",
        model_type: "ernie4_5_moe",
        class: "Ernie4_5_MoeForCausalLM",
        has_experts: true,
        naming: names::ERNIE4_5_MOE,
        adapt: experts::ernie4_5_moe,
        ..PLAIN
    },
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        class: "Qwen3NextForCausalLM",
        has_experts: true,
        ..DELTA_NET
    },
    // These are the text parts of models with images, as in Qwen 2 and 3.
    Architecture {
        name: "qwen35",
        model_type: "qwen3_5_text",
        class: "Qwen3_5ForCausalLM",
        strided_value_heads: true,
        ..DELTA_NET
    },
    Architecture {
        name: "qwen35moe",
        model_type: "qwen3_5_moe_text",
        class: "Qwen3_5MoeForCausalLM",
        strided_value_heads: true,
        has_experts: true,
        ..DELTA_NET
    },
    Architecture {
        name: "granitehybrid",
        model_type: "granitemoehybrid",
        class: "GraniteMoeHybridForCausalLM",
        interleaved: true,
        has_experts: true,
        naming: names::GRANITE_HYBRID,
        kv_heads: KvHeads::SomeLayers,
        adapt: hybrids::granite,
        ..PLAIN
    },
    Architecture {
        name: "falcon-h1",
        model_type: "falcon_h1",
        class: "FalconH1ForCausalLM",
        naming: names::FALCON_H1,
        adapt: hybrids::falcon_h1,
        ..PLAIN
    },
    // The original model rotates neighbors too.
    Architecture {
        name: "llama4",
        model_type: "llama4_text",
        class: "Llama4ForCausalLM",
        has_experts: true,
        naming: names::LLAMA4,
        window: Window::ByFamily,
        adapt: experts::llama4,
        ..PLAIN
    },
    Architecture {
        name: "hunyuan-dense",
        model_type: "hunyuan_v1_dense",
        class: "HunYuanDenseV1ForCausalLM",
        naming: names::HUNYUAN,
        adapt: dense::hunyuan,
        ..PLAIN
    },
    Architecture {
        name: "hunyuan-moe",
        model_type: "hunyuan_v1_moe",
        class: "HunYuanMoEV1ForCausalLM",
        has_experts: true,
        naming: names::HUNYUAN,
        adapt: experts::hunyuan_moe,
        ..PLAIN
    },
    // Its layers with attention have no positions, so that the order of features does not matter.
    NEMOTRON_H,
    Architecture { name: "nemotron_h_moe", has_experts: true, ..NEMOTRON_H },
    Architecture {
        name: "phi2",
        model_type: "phi",
        class: "PhiForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "layer_norm_eps"),
        naming: names::PHI2,
        ..PLAIN
    },
    Architecture {
        name: "phimoe",
        model_type: "phimoe",
        class: "PhimoeForCausalLM",
        has_experts: true,
        window: Window::ByFamily,
        adapt: experts::phimoe,
        ..PLAIN
    },
    Architecture {
        name: "apertus",
        model_type: "apertus",
        class: "ApertusForCausalLM",
        naming: names::APERTUS,
        layer_numbers: &[
            ("xielu.alpha_p", "mlp.act_fn.alpha_p"),
            ("xielu.alpha_n", "mlp.act_fn.alpha_n"),
            ("xielu.beta", "mlp.act_fn.beta"),
            ("xielu.eps", "mlp.act_fn.eps"),
        ],
        adapt: dense::apertus,
        ..PLAIN
    },
    Architecture {
        name: "minicpm3",
        model_type: "minicpm3",
        class: "MiniCPM3ForCausalLM",
        naming: names::MINICPM3,
        adapt: latent::minicpm3,
        ..PLAIN
    },
    // The original model rotates neighbors too.
    Architecture {
        name: "mistral4",
        model_type: "mistral4",
        class: "Mistral4ForCausalLM",
        has_experts: true,
        naming: names::DEEPSEEK2,
        adapt: latent::mistral4,
        ..PLAIN
    },
    Architecture {
        name: "exaone-moe",
        model_type: "exaone_moe",
        class: "ExaoneMoeForCausalLM",
        has_experts: true,
        naming: names::EXAONE_MOE,
        window: Window::ByFamily,
        adapt: experts::exaone_moe,
        ..PLAIN
    },
    Architecture {
        name: "mamba2",
        model_type: "mamba2",
        class: "Mamba2ForCausalLM",
        naming: names::NEMOTRON_H,
        epsilon: ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
        adapt: hybrids::mamba2,
        ..PLAIN
    },
];
