//! Tools whose schemas cannot be compiled.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::grammar::definition::Grammar;

/// Replaces the schemas of tools that do not compile by themselves. Returns the new grammar and the
/// places of these tools, or `None` if there are none.
pub(in crate::grammar) fn without_broken_tools(
    grammar: &Grammar,
    compiles: &dyn Fn(&Value) -> bool,
) -> Option<(Grammar, BTreeSet<usize>)> {
    match grammar {
        Grammar::Calls { rules, schemas, answer } => {
            let mut left_out = BTreeSet::new();
            let schemas = schemas.iter().map(|(name, schema)| {
                let schema = match name.as_str() {
                    "call" => with_definitions(schema, compiles, &mut left_out),
                    name => with_rule(name, schema, compiles, &mut left_out),
                };
                (name.clone(), schema)
            });
            let schemas = schemas.collect();
            let grammar = Grammar::Calls { rules: rules.clone(), schemas, answer: answer.clone() };
            (!left_out.is_empty()).then_some((grammar, left_out))
        }
        Grammar::AfterReasoning { rules, answer } => {
            let (answer, left_out) = without_broken_tools(answer, compiles)?;
            let grammar = Grammar::AfterReasoning { rules: rules.clone(), answer: Box::new(answer) };
            Some((grammar, left_out))
        }
        _ => None,
    }
}

/// Returns the schema of calls to any tool, whose definitions are the schemas of the tools.
fn with_definitions(
    schema: &Value,
    compiles: &dyn Fn(&Value) -> bool,
    left_out: &mut BTreeSet<usize>,
) -> Value {
    let mut schema = schema.clone();
    let Some(Value::Object(definitions)) = schema.get_mut("$defs") else { return schema };
    for (name, definition) in definitions {
        let alone = json!({"$ref": format!("#/$defs/{name}"), "$defs": {name.clone(): definition.clone()}});
        if let (Ok(index), false) = (name.parse(), compiles(&alone)) {
            left_out.insert(index);
            *definition = json!({"type": "object"});
        }
    }
    schema
}

/// Returns the schema of a rule. The name `json_2` stands for the arguments of a tool, and
/// `json_2_5` for one of its arguments.
fn with_rule(
    name: &str,
    schema: &Value,
    compiles: &dyn Fn(&Value) -> bool,
    left_out: &mut BTreeSet<usize>,
) -> Value {
    let mut numbers = name.trim_start_matches("json_").split('_');
    let index = numbers.next().and_then(|index| index.parse().ok());
    let Some(index) = index.filter(|_| !compiles(schema)) else { return schema.clone() };
    left_out.insert(index);
    match numbers.next() {
        None => json!({"type": "object"}),
        Some(_) => json!({}),
    }
}
