//! Fields of requests that several APIs have and that may be written in several ways.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::engine::Priority;
use crate::service::{ServiceError, priority};

/// The field `priority`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "`priority` must be `high`, `normal` or `low`, or the number 0")]
pub(in crate::http) enum PriorityField {
    /// `high`, `normal` or `low`.
    Name(String),
    /// 0, which vLLM's clients send for the usual priority.
    Number(i64),
}

impl PriorityField {
    /// The priority that a request asks for.
    ///
    /// # Errors
    /// If there is none of this name or number. vLLM's other numbers order requests more finely than the
    /// three priorities do.
    pub(super) fn of(field: Option<&Self>) -> Result<Priority, ServiceError> {
        match field {
            None | Some(PriorityField::Number(0)) => Ok(Priority::Normal),
            Some(PriorityField::Name(name)) => priority(Some(name)),
            Some(PriorityField::Number(_)) => {
                let detail = "`priority` must be `high`, `normal` or `low`; of numbers only 0 is accepted, which is normal";
                Err(ServiceError::invalid("priority", detail))
            }
        }
    }
}
