//! The keys of encoders.

use serde_json::{Map, Value, json};

use super::super::model::Model;
use super::gemma::gemma3;
use super::keys::{Config, biases};
use crate::error::Error;
use crate::fault::FileFault;

/// The key with the number of the pooling of the states that a classifier reads.
const CLASSIFIER_POOLING: &str = "classifier.pooling_type";

/// Adds the rows of the table of token types.
fn token_types(model: &Model<'_>, config: &mut Config) {
    if let Some([rows, _]) = model.tensor("token_types.weight").map(|table| &table.shape[..]) {
        config.insert("type_vocab_size".into(), (*rows).into());
    }
}

/// Refuses a file that says that tokens attend to earlier ones only, or that has layers behind the
/// pooling.
fn insist_on_encoder(model: &Model<'_>) -> Result<(), Error> {
    const CAUSAL: &str = "attention.causal";
    match model.header.truth(&model.key(CAUSAL))? {
        Some(true) => Err(model.fault(CAUSAL, "is true, and encoders attend to the whole text".to_owned())),
        Some(false) | None => {
            refuse_tensors(model, "dense_", "belongs to a layer behind the pooling, which is not supported")
        }
    }
}

fn refusal(model: &Model<'_>, tensor: &str, reason: &str) -> Error {
    let reason = format!("{reason}; take the model in Hugging Face layout instead");
    model.header.fault(FileFault::SpecialTensor { tensor: tensor.to_owned(), reason })
}

/// Refuses a file with tensors whose names begin so.
fn refuse_tensors(model: &Model<'_>, begin: &str, reason: &str) -> Result<(), Error> {
    match model.tensors.iter().find(|tensor| tensor.name.starts_with(begin)) {
        Some(tensor) => Err(refusal(model, &tensor.name, reason)),
        None => Ok(()),
    }
}

/// Refuses a file with a classifier that is not known.
fn refuse_classifier(model: &Model<'_>) -> Result<(), Error> {
    refuse_tensors(model, "cls", "belongs to a classifier, which files of this architecture do not have")
}

/// Adds the classifier of texts, if the file has one, as the configuration of `class` has it.
/// Returns whether it has.
///
/// # Errors
/// If a part of the classifier is missing. The converter of llama.cpp leaves out the pooler of
/// BERT, without which the outputs would be others.
fn classifier(model: &Model<'_>, config: &mut Config, class: &str) -> Result<bool, Error> {
    const LABELS: &str = "classifier.output_labels";
    let fault = |tensor: &str, reason: &str| Err(refusal(model, tensor, reason));
    let rows = model.classes();
    match (model.has("cls.weight"), rows) {
        (false, None) => return Ok(false),
        (true, None) => {
            return fault("cls.weight", "belongs to a classifier without a last layer, cls.output");
        }
        (false, Some(_)) => {
            return fault("cls.output.weight", "belongs to a classifier without its first layer, cls");
        }
        (true, Some(_)) => {}
    }
    let labels = model.header.array(&model.key(LABELS), |array, key| array.texts(key))?;
    let rows = rows.unwrap_or_default();
    match &labels {
        Some(labels) if labels.len() != rows => {
            return Err(model.fault(LABELS, format!("has {} entries for {rows} outputs", labels.len())));
        }
        Some(labels) => {
            let named = labels.iter().enumerate().map(|(class, label)| (class.to_string(), json!(label)));
            config.insert("id2label".into(), named.collect::<Map<String, Value>>().into());
        }
        None => {
            config.insert("num_labels".into(), rows.into());
        }
    }
    config.insert("architectures".into(), json!([class]));
    Ok(true)
}

/// Adds the token types and the classifier of a BERT. The table of positions has no rows for
/// padding, so that a RoBERTa is a BERT.
pub(in super::super) fn bert(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_encoder(model)?;
    token_types(model, config);
    classifier(model, config, "BertForSequenceClassification")?;
    Ok(())
}

/// Adds the token types of an encoder whose files have no names for a classifier: Nomic's BERT and
/// Jina Embeddings v3.
pub(in super::super) fn without_classifier(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_encoder(model)?;
    refuse_classifier(model)?;
    token_types(model, config);
    Ok(())
}

/// Adds the window of most layers, and the base of their rotation.
pub(in super::super) fn modern_bert(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const INTERVAL: &str = "attention.sliding_window_pattern";
    insist_on_encoder(model)?;
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
    if classifier(model, config, "ModernBertForSequenceClassification")? {
        // As in llama.cpp, a classifier reads the mean of all states unless the file says
        // otherwise.
        let pooling = match model.header.count(&model.key(CLASSIFIER_POOLING))? {
            None | Some(1) => "mean",
            Some(2) => "cls",
            Some(other) => {
                let reason = format!("is {other}, and known are 1 (mean) and 2 (cls)");
                return Err(model.fault(CLASSIFIER_POOLING, reason));
            }
        };
        config.insert("classifier_pooling".into(), pooling.into());
        config.insert("classifier_bias".into(), model.has("cls.bias").into());
    }
    Ok(())
}

/// Makes an encoder of a Gemma 3.
pub(in super::super) fn gemma(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_encoder(model)?;
    refuse_classifier(model)?;
    gemma3(model, config)?;
    config.insert("use_bidirectional_attention".into(), true.into());
    Ok(())
}
