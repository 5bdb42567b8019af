//! The families of models that can be computed.
//!
//! A family turns a `config.json` into a [`DecoderSpec`](crate::description::DecoderSpec) and names
//! the stored tensors. Everything that families share is in `config`, `decoder`, `experts`, `rope`,
//! `names` and `stored`. To add a family, write a file with its `FAMILY` and add the name of the
//! file to the list below.

mod architecture;
mod config;
mod decoder;
mod delta;
mod dummy;
mod dummy_quantized;
mod encoder;
mod error;
mod experts;
mod family;
mod gemma4_heads;
mod latent;
mod load;
mod mamba;
mod modules;
mod mtp;
mod mtp_place;
mod names;
mod old_names;
mod overrides;
mod quantization;
mod rewriting;
mod rope;
mod stored;
#[cfg(test)]
mod tests;
mod text_part;
mod tied_head;

pub use error::{ConfigError, LoadError};
pub use load::{MatrixNames, load, load_dummy, matrix_names, spec, spec_of_config, vocabulary_tensors};
pub(crate) use modules::{ModulePiece, Modules, modules};
pub use mtp::{load_dummy_mtp, load_mtp};
pub use overrides::{Overrides, RopeKind};
pub use rewriting::{NewRows, RowSource, StoredModel};
pub use stored::host_tensor;
pub use tied_head::are_equal_tensors;

/// Declares the modules of the families, and lists the families in the same order.
macro_rules! families {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        mod registry {
            /// All families.
            pub(super) const FAMILIES: &[super::family::Family] = &[$(super::$name::FAMILY),*];
        }
    };
}

families! {
    llama, mistral, ministral3, qwen2, mimo, qwen3, baichuan, chatglm, chatglm_6b, glm, gemma, gemma2, gemma3_text, gemma4_text, phi3, glm4, glm4v_text,
    smollm3, apertus, ernie4_5, arcee, cwm, hunyuan_v1_dense, granite, olmo, olmo2, olmo3, cohere, cohere2, exaone4, seed_oss, starcoder2, stablelm, phi, phi_msft,
    opt, gpt_neox, gpt2, gpt_bigcode,
    gptj, bloom, falcon, mpt, qwen, internlm2, internlm3, mixtral, phimoe, qwen2_moe, qwen3_moe, qwen3_vl_moe_text,
    llama4_text, glm4_moe, solar_open, dots1, hy_v3, hunyuan_v1_moe, exaone_moe, ernie4_5_moe, olmoe, granitemoe, bert, roberta, xlm_roberta, modernbert, nomic_bert, jina_embeddings_v3, mpnet,
    gpt_oss, minimax_m2, minimax_m3_vl_text, deepseek_v2, deepseek_v3, deepseek_v32, kimi_k2, glm_moe_dsa, glm4_moe_lite, youtu, minicpm3, mistral4,
    qwen3_next, qwen3_5_text, qwen3_5_moe_text, lfm2, lfm2_moe, granitemoehybrid, falcon_h1, nemotron_h, mamba2, kimi_linear,
}
