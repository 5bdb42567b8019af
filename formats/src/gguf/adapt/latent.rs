//! The keys of latent attention.

use serde_json::{Value, json};

use super::super::model::Model;
use super::experts::{routed_experts, sigmoid_experts};
use super::keys::{Config, SIGMOID, SOFTMAX, check_count, copy_counts, insist_on_gating};
use crate::error::Error;

/// Adds latent attention. A router with a softmax is one of DeepSeek-V2, and one with sigmoids one
/// of DeepSeek-V3, which GLM-4.7-Flash has too. A model without experts is a Youtu-LLM.
pub(in super::super) fn deepseek2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    latent_attention(model, config)?;
    if !model.has_experts()? {
        config.insert("model_type".into(), "youtu".into());
        config.insert("architectures".into(), json!(["YoutuForCausalLM"]));
        return Ok(());
    }
    copy_counts(model, config, &[("leading_dense_block_count", "first_k_dense_replace")])?;
    // Old files of DeepSeek-V2 do not name the function.
    if model.header.count(&model.key("expert_gating_func"))? == Some(SIGMOID) {
        return sigmoid_experts(model, config);
    }
    config.insert("model_type".into(), "deepseek_v2".into());
    config.insert("architectures".into(), json!(["DeepseekV2ForCausalLM"]));
    insist_on_gating(model, SOFTMAX)?;
    routed_experts(model, config)?;
    let is_limited = config.get("n_group").and_then(Value::as_u64).is_some_and(|groups| groups > 1);
    let method = if is_limited { "group_limited_greedy" } else { "greedy" };
    config.insert("topk_method".into(), method.into());
    Ok(())
}

/// Adds the experts of GLM-5, and how many keys it chooses in long contexts.
pub(in super::super) fn glm_dsa(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    latent_attention(model, config)?;
    let keys = [
        ("leading_dense_block_count", "first_k_dense_replace"),
        ("attention.indexer.head_count", "index_n_heads"),
        ("attention.indexer.key_length", "index_head_dim"),
        ("attention.indexer.top_k", "index_topk"),
    ];
    copy_counts(model, config, &keys)?;
    sigmoid_experts(model, config)
}

/// Adds latent attention, Kimi Delta Attention in the layers that have no key and value heads, and
/// experts. Both kinds of layers have as many heads.
pub(in super::super) fn kimi_linear(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const KV_HEADS: &str = "attention.head_count_kv";
    latent_attention(model, config)?;
    sigmoid_experts(model, config)?;
    copy_counts(model, config, &[("leading_dense_block_count", "first_k_dense_replace")])?;
    for (usual, own) in [
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_routed_experts", "num_experts"),
        ("n_shared_experts", "num_shared_experts"),
        ("n_group", "num_expert_group"),
    ] {
        if let Some(value) = config.remove(usual) {
            config.insert(own.into(), value);
        }
    }
    // llama.cpp gives the weights of the chosen experts the sum 1.
    config.remove("norm_topk_prob");
    let normed = model.header.truth(&model.key("expert_weights_norm"))?.unwrap_or(true);
    config.insert("moe_renormalize".into(), normed.into());
    let heads = model.layer_counts(KV_HEADS)?;
    check_count(model, KV_HEADS, heads.len())?;
    let layers = |is_recurrent: bool| -> Vec<usize> {
        (1..)
            .zip(&heads)
            .filter(|(_, heads)| (**heads == 0) == is_recurrent)
            .map(|(layer, _)| layer)
            .collect()
    };
    let recurrent = json!({
        "num_heads": model.count("attention.head_count")?,
        "head_dim": model.count("kda.head_dim")?,
        "short_conv_kernel_size": model.count("ssm.conv_kernel")?,
        "kda_layers": layers(true),
        "full_attn_layers": layers(false),
    });
    config.insert("linear_attn_config".into(), recurrent);
    Ok(())
}

/// Adds the sizes of latent attention. In newer files, the lengths of keys and values are the
/// sizes of a cached row, and the sizes of heads have keys of their own.
fn latent_attention(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let either = |name: &str, older: &str| match model.header.count(&model.key(name))? {
        Some(length) => Ok(length),
        None => model.count(older),
    };
    let value = either("attention.value_length_mla", "attention.value_length")?;
    latent_sizes(model, config, value)?;
    // The file has a tenth of the number in the configuration, which is the one for both factors.
    if let Some(scale) = model.number("rope.scaling.yarn_log_multiplier")?
        && let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut)
    {
        scaling.remove("attention_factor");
        for key in ["mscale", "mscale_all_dim"] {
            scaling.insert(key.into(), (10.0 * scale).into());
        }
    }
    Ok(())
}

/// Adds the sizes of latent attention, with `value` features of a head's values.
fn latent_sizes(model: &Model<'_>, config: &mut Config, value: u64) -> Result<(), Error> {
    let rotated = model.count("rope.dimension_count")?;
    let query = match model.header.count(&model.key("attention.key_length_mla"))? {
        Some(length) => length,
        None => model.count("attention.key_length")?,
    };
    let Some(plain) = query.checked_sub(rotated) else {
        let reason = format!("is {rotated}, more than the {query} features of a head");
        return Err(model.fault("rope.dimension_count", reason));
    };
    // Queries without a rank come from the residual stream.
    let query_rank = model.header.count(&model.key("attention.q_lora_rank"))?.filter(|rank| *rank > 0);
    for key in ["head_dim", "partial_rotary_factor"] {
        config.remove(key);
    }
    config.extend([
        ("qk_rope_head_dim".into(), rotated.into()),
        ("qk_nope_head_dim".into(), plain.into()),
        ("v_head_dim".into(), value.into()),
        ("q_lora_rank".into(), query_rank.into()),
        ("kv_lora_rank".into(), model.count("attention.kv_lora_rank")?.into()),
    ]);
    Ok(())
}

/// Adds the sizes of MiniCPM3. The file lacks the factors on embedding, branches and logits, so
/// they are taken from the published model.
pub(in super::super) fn minicpm3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let value = model.header.count(&model.key("attention.value_length"))?;
    let heads = model.count("attention.head_count")?;
    let share = model.count("embedding_length")?.checked_div(heads).unwrap_or_default();
    latent_sizes(model, config, value.unwrap_or(share))
}

/// Adds the experts of Mistral 4, and the factors on queries that grow with the position.
pub(in super::super) fn mistral4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    latent_attention(model, config)?;
    copy_counts(model, config, &[("leading_dense_block_count", "first_k_dense_replace")])?;
    insist_on_gating(model, SOFTMAX)?;
    routed_experts(model, config)?;
    let beta = model.number("attention.temperature_scale")?;
    let scaling = config.entry("rope_scaling").or_insert_with(|| json!({"rope_type": "default"}));
    if let (Some(beta), Some(scaling)) = (beta.filter(|beta| *beta != 0.0), scaling.as_object_mut()) {
        scaling.insert("llama_4_scaling_beta".into(), beta.into());
    }
    Ok(())
}
