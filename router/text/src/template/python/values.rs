//! Conversion of a conversation to values that print in Python's format.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};

use super::repr;

/// Converts a list of JSON values to a template's list.
pub(in crate::template) fn list_of(items: &[serde_json::Value]) -> Value {
    Value::from_object(List(items.iter().map(value_of).collect()))
}

/// Converts a JSON value to a template's value.
pub(in crate::template) fn value_of(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Array(items) => list_of(items),
        serde_json::Value::Object(fields) => {
            let (keys, values) = fields.iter().map(|(key, value)| (key.clone(), value_of(value))).unzip();
            Value::from_object(Dictionary { keys, values, fields: fields.keys().cloned().zip(0..).collect() })
        }
        plain => Value::from_serialize(plain),
    }
}

/// A Python `list`.
#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

/// A Python `dict`. It keeps the order of its fields.
#[derive(Debug)]
struct Dictionary {
    keys: Vec<String>,
    values: Vec<Value>,
    /// The index of each field.
    fields: std::collections::HashMap<String, usize>,
}

impl Object for Dictionary {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.values.get(*self.fields.get(key.as_str()?)?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.keys.iter().map(Value::from).collect())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

fn render(value: Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = String::new();
    repr::write_repr(&value, &mut text, 0);
    f.write_str(&text)
}
