//! Vectors of texts, which several APIs return.

use futures::{StreamExt, TryStreamExt, stream};

use super::app::App;
use super::openai::concurrent_prompts;
use crate::service::{Params, Prepared, Prompt, ServiceError};

/// How vectors are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct VectorOptions {
    /// Number of features to keep. `None` keeps all.
    pub(super) dimensions: Option<usize>,
    /// Whether vectors are scaled to the length 1.
    pub(super) normalize: bool,
    /// Whether only the last tokens of a text are used if it is too long.
    pub(super) truncate: bool,
}

/// The vectors of some texts, in their order.
#[derive(Debug)]
pub(super) struct Vectors {
    pub(super) vectors: Vec<Vec<f32>>,
    /// Number of tokens of all texts together.
    pub(super) prompt_tokens: usize,
}

/// Computes a vector for each of `inputs`. All of them are validated before the first is computed.
///
/// # Errors
/// If an input or an option is invalid, or the model cannot compute vectors.
pub(super) async fn compute(
    app: &App,
    inputs: Vec<Prompt>,
    options: VectorOptions,
) -> Result<Vectors, ServiceError> {
    let ready = app.service.ready()?;
    let features = ready.hidden_size as usize;
    let kept = options.dimensions.unwrap_or(features);
    if kept == 0 || kept > features {
        let message = format!("`dimensions` must be > 0 and <= {features}. Given: {kept}");
        return Err(ServiceError::invalid("dimensions", message));
    }
    let pooling =
        app.service.pooling(&ready).map_err(|why| ServiceError::invalid("model", why.to_string()))?;
    let params = Params {
        max_new_tokens: Some(0),
        echoes: true,
        pooling: Some(pooling),
        truncate: options.truncate.then(|| app.service.limits().tokens(&ready).max_input),
        ..Params::default()
    };

    let width = concurrent_prompts(app, 1);
    let prepare = |input| app.service.prepare(input, params.clone());
    let prepared: Vec<Prepared> = stream::iter(inputs).map(prepare).buffered(width).try_collect().await?;
    let prompt_tokens = prepared.iter().map(|input| input.prompt().len()).sum();
    let embed = |input| async move {
        let mut vector = app.service.start(input)?.collect().await?.vector;
        vector.truncate(kept);
        if options.normalize { normalize(&mut vector) } else { check(&vector) }?;
        Ok::<_, ServiceError>(vector)
    };
    let vectors = stream::iter(prepared).map(embed).buffered(width).try_collect().await?;
    Ok(Vectors { vectors, prompt_tokens })
}

/// Scales a vector to the length 1. A vector of zeros stays as it is.
fn normalize(vector: &mut [f32]) -> Result<(), ServiceError> {
    check(vector)?;
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    Ok(())
}

/// Refuses a vector that is not a vector of numbers.
fn check(vector: &[f32]) -> Result<(), ServiceError> {
    if vector.iter().all(|value| value.is_finite()) {
        Ok(())
    } else {
        Err(ServiceError::Generation("the model's hidden states are not finite".into()))
    }
}
