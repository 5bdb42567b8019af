//! Sampling parameters in OpenAI's terms, which Anthropic's API shares.

use millrace_text::StopText;

use crate::service::{Params, Service, ServiceError};

/// Returns parameters that sample as OpenAI's API does: with temperature 1 by default, and greedily
/// with temperature 0. Stop strings are removed from the text.
///
/// # Errors
/// [`ServiceError::Validation`] if `top_p` is out of range.
pub(super) fn sampling(
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
) -> Result<Params, ServiceError> {
    if top_p.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
        let detail = "`top_p` must be >= 0.0 and <= 1.0";
        return Err(Service::reject(ServiceError::invalid("top_p", detail)));
    }
    let greedy = temperature == Some(0.0);
    Ok(Params {
        do_sample: !greedy,
        temperature: temperature.filter(|_| !greedy),
        // Both 0 and -1 turn it off. A greedy answer ignores it, but not a value out of its range.
        top_k: top_k
            .map(|k| if matches!(k, 0 | -1) { Params::ALL } else { k })
            .filter(|&k| !greedy || k <= 0),
        // OpenAI allows 0, which keeps the most likely token.
        top_p: top_p.filter(|_| !greedy).map(|p| if p == 0.0 { f32::MIN_POSITIVE } else { p }),
        stop_text: StopText::Remove,
        model_defaults: true,
        openai_bounds: true,
        ..Params::default()
    })
}
