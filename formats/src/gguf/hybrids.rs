//! Adds the keys of models with recurrent layers to a configuration.

use super::adapt::{self, Config};
use super::model::Model;
use super::value::Value as FileValue;
use crate::error::Error;

/// The name of layers with attention in `layer_types`.
const ATTENTION: &str = "full_attention";

pub(super) fn lfm2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const KV_HEADS: &str = "attention.head_count_kv";
    let counts = model.header.array(&model.key(KV_HEADS), |array, key| array.counts(key))?;
    let counts = counts.ok_or_else(|| model.missing(KV_HEADS))?;
    adapt::check_count(model, KV_HEADS, counts.len())?;
    let name = |heads: u64| if heads == 0 { "conv" } else { ATTENTION };
    config.insert("layer_types".into(), counts.into_iter().map(name).collect());
    config.insert("conv_L_cache".into(), model.count("shortconv.l_cache")?.into());
    // The width of the file is the adjusted one.
    config.insert("block_auto_adjust_ff_dim".into(), false.into());
    let has_bias = model.tensors.iter().any(|tensor| tensor.name.ends_with(".shortconv.conv.bias"));
    config.insert("conv_bias".into(), has_bias.into());
    Ok(())
}

/// Adds the gated delta nets of Qwen3-Next and Qwen3.5, and their experts.
pub(super) fn delta_net(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
        ("ssm.state_size", "linear_key_head_dim"),
        ("ssm.group_count", "linear_num_key_heads"),
        ("ssm.time_step_rank", "linear_num_value_heads"),
    ];
    adapt::copy_counts(model, config, &keys)?;
    let (width, heads) = (model.count("ssm.inner_size")?, model.count("ssm.time_step_rank")?);
    if heads == 0 || !width.is_multiple_of(heads) {
        let reason = format!("is {width}, which {heads} value heads cannot share evenly");
        return Err(model.fault("ssm.inner_size", reason));
    }
    config.insert("linear_value_head_dim".into(), (width / heads).into());
    config.insert("layer_types".into(), delta_layers(model)?.into());
    if model.has_experts()? {
        adapt::insist_on_gating(model, adapt::SOFTMAX)?;
        adapt::copy_counts(model, config, &adapt::QWEN_EXPERTS)?;
        let shared = [("expert_shared_feed_forward_length", "shared_expert_intermediate_size")];
        adapt::copy_counts(model, config, &shared)?;
        config.insert("norm_topk_prob".into(), true.into());
    }
    Ok(())
}

/// Returns the kinds of the layers: the file names the recurrent ones, or every how many layers
/// one has attention.
fn delta_layers(model: &Model<'_>) -> Result<Vec<&'static str>, Error> {
    const RECURRENT: &str = "attention.recurrent_layers";
    const INTERVAL: &str = "full_attention_interval";
    let name = |is_recurrent: bool| if is_recurrent { "linear_attention" } else { ATTENTION };
    let layers = model.layers()?;
    let key = model.key(RECURRENT);
    if let Some(FileValue::Array(_)) = model.header.value(&key) {
        let kinds = model.header.array(&key, |array, key| array.truths(key))?.unwrap_or_default();
        adapt::check_count(model, RECURRENT, kinds.len())?;
        return Ok((0..layers).zip(kinds).map(|(_, is_recurrent)| name(is_recurrent)).collect());
    }
    let every = model.header.count(&model.key(INTERVAL))?.unwrap_or(4);
    if every == 0 {
        return Err(model.fault(INTERVAL, "is 0".to_owned()));
    }
    Ok((1..=layers).map(|layer| name(!layer.is_multiple_of(every))).collect())
}
