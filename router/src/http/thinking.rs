//! Fields about the model's reasoning, in the spellings of several APIs.

use millrace_answers::reasoning::ThinkingBudget;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::chat::{IgnoredFields, ThinkingOptions};

/// Fields that all routes with messages have. Each budget is a number of tokens, of which -1 is no
/// limit.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct ThinkingFields {
    /// vLLM's name of the budget.
    thinking_token_budget: Option<i64>,
    /// The name of the budget in llama.cpp.
    reasoning_budget: Option<i64>,
    /// The name of the budget in Alibaba's API.
    thinking_budget: Option<i64>,
    /// Whether the answer has the reasoning; true by default.
    include_reasoning: Option<bool>,
}

/// The object `reasoning`, which several APIs have.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ReasoningOptions)]
pub(super) struct ReasoningField {
    /// How much the model reasons.
    pub(super) effort: Option<String>,
    /// The tokens that the model may think.
    max_tokens: Option<i64>,
    /// Whether the reasoning is left out of the answer.
    exclude: Option<bool>,
    /// Whether the model thinks.
    enabled: Option<bool>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A field that is wrong, and why.
pub(super) struct WrongThinking {
    pub(super) field: &'static str,
    pub(super) message: String,
}

/// Returns what the fields of a request say about the reasoning. `own` is the budget of the route's
/// own API with the name of its field.
///
/// # Errors
/// [`WrongThinking`] if a budget is out of range, or two fields ask for different budgets.
pub(super) fn thinking_options(
    fields: &ThinkingFields,
    reasoning: Option<&ReasoningField>,
    own: Option<(&'static str, i64)>,
    ignored: &mut IgnoredFields,
) -> Result<ThinkingOptions, WrongThinking> {
    let ReasoningField { max_tokens, exclude, enabled, .. } = match reasoning {
        Some(ReasoningField { max_tokens, exclude, enabled, rest, .. }) => {
            for (name, _) in rest.iter().filter(|(_, value)| !value.is_null()) {
                ignored.note(&format!("reasoning.{name}"));
            }
            ReasoningField {
                max_tokens: *max_tokens,
                exclude: *exclude,
                enabled: *enabled,
                ..Default::default()
            }
        }
        None => ReasoningField::default(),
    };
    let given = [
        own,
        fields.thinking_token_budget.map(|budget| ("thinking_token_budget", budget)),
        fields.reasoning_budget.map(|budget| ("reasoning_budget", budget)),
        fields.thinking_budget.map(|budget| ("thinking_budget", budget)),
        max_tokens.map(|budget| ("reasoning.max_tokens", budget)),
        enabled.filter(|enabled| !enabled).map(|_| ("reasoning.enabled", 0)),
    ];
    let mut budget: Option<(&'static str, ThinkingBudget)> = None;
    for (field, value) in given.into_iter().flatten() {
        let parsed = parse_budget(field, value)?;
        match budget {
            Some((other, before)) if before != parsed => {
                let message = format!("`{field}` and `{other}` ask for different budgets");
                return Err(WrongThinking { field, message });
            }
            _ => budget = budget.or(Some((field, parsed))),
        }
    }
    let is_hidden = fields.include_reasoning == Some(false) || exclude == Some(true);
    Ok(ThinkingOptions { budget, is_hidden })
}

/// Returns the budget of a request for a raw prompt, if it is limited.
///
/// # Errors
/// [`WrongThinking`] if the budget is out of range.
pub(super) fn raw_budget(thinking_token_budget: Option<i64>) -> Result<Option<u32>, WrongThinking> {
    let Some(value) = thinking_token_budget else { return Ok(None) };
    match parse_budget("thinking_token_budget", value)? {
        ThinkingBudget::Unlimited => Ok(None),
        ThinkingBudget::Tokens(tokens) => Ok(Some(tokens)),
    }
}

fn parse_budget(field: &'static str, value: i64) -> Result<ThinkingBudget, WrongThinking> {
    match u32::try_from(value) {
        Ok(tokens) => Ok(ThinkingBudget::Tokens(tokens)),
        Err(_) if value == -1 => Ok(ThinkingBudget::Unlimited),
        Err(_) if value > 0 => Ok(ThinkingBudget::Tokens(u32::MAX)),
        Err(_) => {
            let message = format!("`{field}` must be a number of tokens, or -1 for no limit");
            Err(WrongThinking { field, message })
        }
    }
}
