//! The terms that grammars of calls are made of: literals, expressions, and the schemas of tools.

use serde_json::{Map, Value};

use super::super::allowed::Tool;

/// Returns a text as a string of Lark.
pub(in crate::tools) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns the schemas of the tools' arguments by the tools' indices.
pub(super) fn definitions<'a>(tools: impl Iterator<Item = (usize, &'a Tool)>) -> Map<String, Value> {
    let moved = |(index, tool): (usize, &Tool)| {
        let mut parameters = tool.parameters.clone();
        relocate(&mut parameters, &format!("#/$defs/{index}"));
        (index.to_string(), parameters)
    };
    tools.map(moved).collect()
}

/// Changes the references of a schema to itself, so that they lead to its new place.
pub(super) fn relocate(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(inner) = reference.strip_prefix('#')
            {
                *reference = format!("{place}{inner}");
            }
            fields.values_mut().for_each(|value| relocate(value, place));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| relocate(item, place)),
        _ => {}
    }
}
