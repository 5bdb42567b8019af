//! The fields and types of schemas as HTML.

use std::fmt::{Result, Write};

use serde_json::Value;

/// The deepest chain of references between schemas that is followed, in case of a cycle.
const MAX_DEPTH: usize = 8;

/// A field of an object.
struct Field<'a> {
    name: &'a str,
    schema: &'a Value,
    is_required: bool,
}

/// Writes a named schema as a folded part of the page.
pub(super) fn write_type(docs: &Value, name: &str, schema: &Value, page: &mut String) -> Result {
    write!(
        page,
        "<details class=\"route type\" id=\"{}\"><summary><h3><code>{}</code></h3> <span class=\"says\">{}</span></summary><div class=\"more\">",
        anchor("type", name),
        escape(name),
        prose(first_sentence(schema["description"].as_str().unwrap_or_default()))
    )?;
    if let Some(about) = schema["description"].as_str() {
        write!(page, "<p>{}</p>", prose(about))?;
    }
    if !write_fields(docs, schema, page)? && write_variants(docs, schema, page)? == 0 {
        write!(page, "<p>{}</p>", kind(schema))?;
    }
    page.write_str("</div></details>")
}

/// Writes the schemas among which a value of this schema has one, and returns their number.
fn write_variants(
    docs: &Value,
    schema: &Value,
    page: &mut String,
) -> std::result::Result<usize, std::fmt::Error> {
    let variants = ["oneOf", "anyOf"].into_iter().find_map(|name| schema[name].as_array());
    let variants = variants.map(Vec::as_slice).unwrap_or_default();
    for variant in variants {
        write!(page, "<p>Either {}", kind(variant))?;
        if let Some(about) = variant["description"].as_str() {
            write!(page, ": {}", prose(about))?;
        }
        page.write_str("</p>")?;
        // A reference leads to its own part of the page.
        if variant["$ref"].is_null() {
            write_fields(docs, variant, page)?;
        }
    }
    Ok(variants.len())
}

/// Writes the table of a schema's fields, and returns whether there are any.
pub(super) fn write_fields(
    docs: &Value,
    schema: &Value,
    page: &mut String,
) -> std::result::Result<bool, std::fmt::Error> {
    let mut fields = Vec::new();
    collect_fields(docs, schema, &mut fields, 0);
    if fields.is_empty() {
        return Ok(false);
    }
    page.write_str("<div class=\"wide\" tabindex=\"0\"><table class=\"fields\"><thead><tr><th>Field</th><th>Type</th><th>About</th></tr></thead><tbody>")?;
    for Field { name, schema, is_required } in &fields {
        write!(
            page,
            "<tr><td><code>{}</code>{}</td><td>{}</td><td>{}{}</td></tr>",
            escape(name),
            required_mark(*is_required),
            kind(schema),
            prose(schema["description"].as_str().unwrap_or_default()),
            bounds(schema)
        )?;
    }
    page.write_str("</tbody></table></div>")?;
    Ok(true)
}

/// Collects the fields of a schema, including those of its parts.
fn collect_fields<'a>(docs: &'a Value, schema: &'a Value, to: &mut Vec<Field<'a>>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(name) = referred(schema) {
        return collect_fields(docs, &docs["components"]["schemas"][name], to, depth + 1);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        collect_fields(docs, part, to, depth + 1);
    }
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        to.push(Field { name, schema: field, is_required: required.iter().any(|other| other == name) });
    }
}

/// Returns the name of the schema that this one refers to.
fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// Returns the type of a value in words, as HTML with links to named types.
pub(super) fn kind(schema: &Value) -> String {
    if let Some(name) = referred(schema) {
        return format!("<a href=\"#{}\">{}</a>", anchor("type", name), escape(name));
    }
    if let Some(values) = schema["enum"].as_array() {
        let values = values.iter().map(|value| format!("<code>{}</code>", escape(&value.to_string())));
        return values.collect::<Vec<_>>().join(" or ");
    }
    let list = || format!("list of {}", kind(&schema["items"]));
    let named = |kind: &str| if kind == "array" { list() } else { escape(kind) };
    match &schema["type"] {
        Value::String(kind) => named(kind),
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            kinds.map(named).collect::<Vec<_>>().join(" or ")
        }
        _ => match ["oneOf", "anyOf", "allOf"].into_iter().find_map(|name| schema[name].as_array()) {
            Some(variants) => {
                let kinds = variants.iter().map(kind).filter(|kind| kind != "null");
                kinds.collect::<Vec<_>>().join(" or ")
            }
            None => "anything".into(),
        },
    }
}

/// Returns the default and the range of a field as HTML.
fn bounds(schema: &Value) -> String {
    let named = [("Default", "default"), ("At least", "minimum"), ("At most", "maximum")];
    let told = named.into_iter().filter(|(_, name)| !schema[*name].is_null());
    told.map(|(label, name)| {
        format!(" <small>{label} <code>{}</code></small>", escape(&schema[name].to_string()))
    })
    .collect()
}

/// Returns the mark of a required field as HTML.
pub(super) fn required_mark(is_required: bool) -> &'static str {
    if is_required { " <small>required</small>" } else { "" }
}

/// Returns the anchor of a part of the page.
pub(super) fn anchor(kind: &str, name: &str) -> String {
    let mut anchor = String::from(kind);
    for part in name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|part| !part.is_empty()) {
        anchor.push('-');
        anchor.push_str(part);
    }
    anchor
}

fn first_sentence(text: &str) -> &str {
    text.split_inclusive(". ").next().unwrap_or_default().trim_end()
}

/// Returns a description as HTML, with the parts in backticks as code.
pub(super) fn prose(text: &str) -> String {
    let mut html = String::new();
    for (index, part) in text.split('`').enumerate() {
        let part = escape(part);
        // Every second part is between backticks. The last one of an even number is not closed.
        html += &if index % 2 == 1 { format!("<code>{part}</code>") } else { part };
    }
    html
}

/// Returns a text as HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
