//! The keys of encoders.

use super::super::model::Model;
use super::gemma::gemma3;
use super::keys::{Config, biases};
use crate::error::Error;

/// Refuses a file that says that tokens attend to earlier ones only.
fn insist_on_both_ways(model: &Model<'_>) -> Result<(), Error> {
    const CAUSAL: &str = "attention.causal";
    match model.header.truth(&model.key(CAUSAL))? {
        Some(true) => Err(model.fault(CAUSAL, "is true, and encoders attend to the whole text".to_owned())),
        Some(false) | None => Ok(()),
    }
}

/// Adds the rows of the table of token types. The table of positions has no rows for padding, so
/// that a RoBERTa is a BERT.
pub(in super::super) fn bert(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_both_ways(model)?;
    if let Some([rows, _]) = model.tensor("token_types.weight").map(|table| &table.shape[..]) {
        config.insert("type_vocab_size".into(), (*rows).into());
    }
    Ok(())
}

/// Adds the window of most layers, and the base of their rotation.
pub(in super::super) fn modern_bert(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const INTERVAL: &str = "attention.sliding_window_pattern";
    insist_on_both_ways(model)?;
    let window = config.remove("sliding_window").ok_or_else(|| model.missing("attention.sliding_window"))?;
    config.insert("local_attention".into(), window);
    if let Some(interval) = model.header.count(&model.key(INTERVAL))? {
        config.insert("global_attn_every_n_layers".into(), interval.into());
    }
    if let Some(base) = model.number("rope.freq_base_swa")? {
        config.insert("local_rope_theta".into(), base.into());
    }
    for key in ["hidden_act", "hidden_activation"] {
        if let Some(name) = model.header.text(&model.key(key))? {
            config.insert("hidden_activation".into(), name.into());
        }
    }
    config.insert("norm_bias".into(), model.has_bias("ffn_norm").into());
    biases(model, config, &[("attn_q", "attention_bias"), ("ffn_up", "mlp_bias")]);
    Ok(())
}

/// Makes an encoder of a Gemma 3.
pub(in super::super) fn gemma(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_both_ways(model)?;
    gemma3(model, config)?;
    config.insert("use_bidirectional_attention".into(), true.into());
    Ok(())
}
