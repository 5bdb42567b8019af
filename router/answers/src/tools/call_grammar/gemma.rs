//! The rules for calls in Gemma's notation, whose keys and strings have no quotes of JSON.
//!
//! The keys of an object are in alphabetical order, as the templates write them. Of a schema, the
//! rules follow `type`, `properties`, `required`, `items`, `enum`, `const`, `anyOf`, `oneOf` and
//! references, and for numbers everything. Other keywords do not constrain a value.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use super::tags::{IndexedTool, ValueSchemas};
use super::terms::quoted;
use crate::grammar::MarkTokens;
use crate::tools::allowed::AllowedTools;
use crate::tools::gemma_call::{HEAD, literal};
use crate::tools::syntax::GEMMA_QUOTE;

/// The deepest schema whose parts become rules. Values below are any values.
const MAX_DEPTH: usize = 64;
/// The number of rules after which values are any values.
const MAX_RULES: usize = 10_000;

/// Returns the rules for calls.
pub(super) fn gemma_calls(
    tools: &AllowedTools,
    tokens: MarkTokens<'_>,
    marks: &[&str],
) -> (String, Vec<(String, Value)>) {
    let quote = tokens.mark(GEMMA_QUOTE);
    let mut writer = GemmaWriter {
        rules: String::new(),
        schemas: ValueSchemas::default(),
        references: HashMap::new(),
        count: 0,
        quote: quote.clone(),
    };
    let mut calls = Vec::new();
    for (index, tool) in tools.callable().enumerate() {
        let tool = IndexedTool::new(index, tool);
        writer.references.clear();
        let arguments = writer.object(&tool, &tool.tool.parameters, 0);
        calls.push(format!("{} {arguments}", quoted(&format!("{HEAD}{}", tool.tool.name))));
    }
    let others = tokens.others_within(marks);
    let text = super::tags::text_rule("text", tokens.special(GEMMA_QUOTE), GEMMA_QUOTE, "", others);
    let GemmaWriter { rules, schemas, .. } = writer;
    let rules = format!(
        "call: {}\n{rules}{text}string: {quote} text\n\
         value: string | NUMBER | \"true\" | \"false\" | \"null\" | list | object\n\
         list: \"[\" (value (\",\" value)*)? \"]\"\nobject: \"{{\" (pair (\",\" pair)*)? \"}}\"\n\
         pair: KEY \":\" value\nKEY: /[A-Za-z0-9_.$-]{{1,128}}/\n\
         NUMBER: /-?(0|[1-9][0-9]{{0,32}})(\\.[0-9]{{1,32}})?([eE][+-]?[0-9]{{1,3}})?/\n",
        calls.join(" | ")
    );
    (rules, schemas.schemas)
}

/// Writes the rules of values.
struct GemmaWriter {
    rules: String,
    schemas: ValueSchemas,
    /// The rules of the references of the current tool.
    references: HashMap<String, String>,
    /// The number of rules so far.
    count: usize,
    quote: String,
}

impl GemmaWriter {
    /// Adds a rule with a new name and returns the name.
    fn add(&mut self, body: &str) -> String {
        let name = self.name();
        self.rules += &format!("{name}: {body}\n");
        name
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("value_{}", self.count)
    }

    /// Returns the rule for a value.
    fn value(&mut self, tool: &IndexedTool, schema: &Value, depth: usize) -> String {
        if depth > MAX_DEPTH || self.count > MAX_RULES {
            return "value".to_owned();
        }
        if let Some(reference) = schema["$ref"].as_str() {
            return self.reference(tool, reference, depth);
        }
        let listed =
            schema["enum"].as_array().cloned().or(schema.get("const").map(|value| vec![value.clone()]));
        if let Some(values) = listed.filter(|values| !values.is_empty()) {
            let values: Vec<String> = values.iter().map(|value| self.literal(value)).collect();
            return self.add(&values.join(" | "));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(choices) = schema[key].as_array().filter(|choices| !choices.is_empty()) {
                let choices: Vec<String> =
                    choices.iter().map(|choice| self.value(tool, choice, depth + 1)).collect();
                return self.add(&choices.join(" | "));
            }
        }
        if let Some(types) = schema["type"].as_array().filter(|types| !types.is_empty()) {
            let kinds: BTreeSet<&str> = types.iter().filter_map(Value::as_str).collect();
            let mut choices = Vec::new();
            for kind in kinds {
                let mut one = schema.clone();
                one["type"] = kind.into();
                choices.push(self.value(tool, &one, depth + 1));
            }
            return self.add(&choices.join(" | "));
        }
        match schema["type"].as_str() {
            Some("string") => "string".to_owned(),
            Some("integer" | "number" | "boolean" | "null") => self.schemas.rule(tool, schema),
            Some("array") => {
                let item = match schema.get("items").filter(|items| items.is_object()) {
                    Some(items) => self.value(tool, items, depth + 1),
                    None => "value".to_owned(),
                };
                self.add(&format!("\"[\" ({item} (\",\" {item})*)? \"]\""))
            }
            Some("object") => self.object(tool, schema, depth),
            _ if schema["properties"].is_object() => self.object(tool, schema, depth),
            _ => "value".to_owned(),
        }
    }

    /// Returns the rule for a reference within the tool's schema, which may be recursive.
    fn reference(&mut self, tool: &IndexedTool, reference: &str, depth: usize) -> String {
        if let Some(rule) = self.references.get(reference) {
            return rule.clone();
        }
        let target = reference.strip_prefix('#').and_then(|path| tool.tool.parameters.pointer(path));
        let Some(target) = target else { return "value".to_owned() };
        let name = self.name();
        self.references.insert(reference.to_owned(), name.clone());
        // A reference to nothing but itself allows every value, as in JSON Schema.
        let rule = if target["$ref"] == reference {
            "value".to_owned()
        } else {
            self.value(tool, target, depth + 1)
        };
        self.rules += &format!("{name}: {rule}\n");
        name
    }

    /// Returns the rule for an object: its keys in alphabetical order, of which some may be absent.
    fn object(&mut self, tool: &IndexedTool, schema: &Value, depth: usize) -> String {
        let properties: BTreeMap<&String, &Value> =
            schema["properties"].as_object().into_iter().flatten().collect();
        if properties.is_empty() {
            let is_closed = schema["additionalProperties"] == json!(false);
            return if is_closed { self.add("\"{}\"") } else { "object".to_owned() };
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut pairs = Vec::new();
        for (key, schema) in properties {
            let value = self.value(tool, schema, depth + 1);
            let pair = self.add(&format!("{} {value}", quoted(&format!("{key}:"))));
            pairs.push((pair, required.contains(&key.as_str())));
        }
        // `rest` are the pairs after another one, and `first` those at the beginning.
        let (mut rest, mut first) = (String::new(), None);
        for (pair, is_required) in pairs.iter().rev() {
            let later = first
                .filter(|_| !is_required)
                .map_or_else(String::new, |first: String| format!(" | {first}"));
            first = Some(self.add(&format!("{pair} {rest}{later}")));
            rest = match is_required {
                true => self.add(&format!("\",\" {pair} {rest}")),
                false => self.add(&format!("(\",\" {pair})? {rest}")),
            };
        }
        let first = first.unwrap_or_default();
        let optional = if pairs.iter().any(|(_, is_required)| *is_required) { "" } else { "?" };
        self.add(&format!("\"{{\" {first}{optional} \"}}\""))
    }

    /// Returns the terms for one value.
    fn literal(&self, value: &Value) -> String {
        match value {
            Value::String(text) if text.is_empty() => format!("{0} {0}", self.quote),
            Value::String(text) => format!("{0} {1} {0}", self.quote, quoted(text)),
            value => {
                // Strings within are between marks, which may be special tokens.
                let text = literal(value);
                let parts: Vec<String> = text
                    .split(GEMMA_QUOTE)
                    .map(|part| if part.is_empty() { String::new() } else { quoted(part) })
                    .collect();
                parts.join(&format!(" {} ", self.quote))
            }
        }
    }
}
