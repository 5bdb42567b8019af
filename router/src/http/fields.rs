//! Request fields that several APIs have and that have several forms.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::engine::Priority;
use crate::service::{ServiceError, priority};

/// The field `priority`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "`priority` must be `high`, `normal` or `low`, or the number 0")]
pub(super) enum PriorityField {
    /// `high`, `normal` or `low`.
    Name(String),
    /// 0, which vLLM's clients send for the normal priority.
    Number(i64),
}

impl PriorityField {
    /// Returns the priority of a request; without the field it is normal.
    ///
    /// # Errors
    /// [`ServiceError::Validation`] if no priority has this name or number. vLLM's other numbers
    /// have no equivalent among the three priorities.
    pub(super) fn of(field: Option<&Self>) -> Result<Priority, ServiceError> {
        match field {
            None | Some(PriorityField::Number(0)) => Ok(Priority::Normal),
            Some(PriorityField::Name(name)) => priority(Some(name)),
            Some(PriorityField::Number(_)) => {
                let detail = "`priority` must be `high`, `normal` or `low`; the only number that is accepted is 0, which means normal";
                Err(ServiceError::invalid("priority", detail))
            }
        }
    }
}
