//! Request fields that several APIs have and that have several forms.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::engine::Priority;
use crate::service::{ServiceError, priority};

/// Reads a field that is an object. By itself, a structure is also read from a list of the values
/// of its fields.
pub(super) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    FromObject::deserialize(deserializer).map(|object| object.0)
}

/// Reads a field that is an [`object`] or null.
pub(super) fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<FromObject<T>>::deserialize(deserializer).map(|object| object.map(|object| object.0))
}

/// Reads a field that is a list of [`object`]s.
pub(super) fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let objects = Vec::<FromObject<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|object| object.0).collect())
}

/// A structure that is read from an object only.
pub(super) struct FromObject<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FromObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(FromObject)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

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
