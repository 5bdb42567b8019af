//! The documentation of the API as a page without scripts.

use std::fmt::Write;

use serde_json::Value;
use utoipa::openapi::OpenApi;

const STYLE: &str = "\
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
details { border: 1px solid #8886; border-radius: 6px; margin: .5rem 0; padding: .25rem .75rem }
summary { cursor: pointer } code { font-size: .9em } .method { font-weight: 600; display: inline-block; min-width: 4em }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 } td, th { text-align: left; vertical-align: top; padding: .2rem .75rem .2rem 0 }
td { border-top: 1px solid #8884 } .more { overflow-x: auto }
";

/// Returns the page: the routes by their tags, each with its fields and statuses.
pub(super) fn html(docs: &OpenApi) -> String {
    let docs = serde_json::to_value(docs).unwrap_or_default();
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write(&docs, &mut page);
    page
}

fn write(docs: &Value, page: &mut String) -> std::fmt::Result {
    let (title, about) = (text(&docs["info"]["title"]), text(&docs["info"]["description"]));
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}: API</title><style>{STYLE}</style></head><body><main><h1>{title} {}</h1><p>{about}.</p>\
         <p>For programs: <a href=\"/api-doc/openapi.json\">openapi.json</a>.</p>",
        text(&docs["info"]["version"])
    )?;
    let mut tags: Vec<&str> = operations(docs).filter_map(|(_, _, op)| op["tags"][0].as_str()).collect();
    tags.sort_unstable();
    tags.dedup();
    for tag in tags {
        write!(page, "<h2>{}</h2>", escape(tag))?;
        for (path, method, operation) in operations(docs).filter(|(_, _, op)| op["tags"][0] == tag) {
            write_operation(docs, path, method, operation, page)?;
        }
    }
    page.write_str("</main></body></html>")
}

fn operations(docs: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = docs["paths"].as_object().into_iter().flatten();
    paths.flat_map(|(path, item)| {
        let methods = item.as_object().into_iter().flatten();
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

fn write_operation(
    docs: &Value,
    path: &str,
    method: &str,
    operation: &Value,
    page: &mut String,
) -> std::fmt::Result {
    write!(
        page,
        "<details><summary><span class=\"method\">{}</span><code>{}</code> {}</summary><div class=\"more\">",
        method.to_uppercase(),
        escape(path),
        text(&operation["summary"])
    )?;
    if let Some(more) = operation["description"].as_str() {
        write!(page, "<p>{}</p>", escape(more))?;
    }
    let mut fields = Vec::new();
    collect_fields(docs, &operation["requestBody"]["content"]["application/json"]["schema"], &mut fields, 0);
    if !fields.is_empty() {
        page.write_str("<table><tr><th>Field</th><th>Type</th><th></th></tr>")?;
        for (name, schema, required) in fields {
            let needed = if required { " (required)" } else { "" };
            let about = text(&schema["description"]);
            write!(
                page,
                "<tr><td><code>{}</code>{needed}</td><td>{}</td><td>{about}</td></tr>",
                escape(name),
                escape(&kind(schema))
            )?;
        }
        page.write_str("</table>")?;
    }
    page.write_str("<table><tr><th>Status</th><th></th></tr>")?;
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        write!(page, "<tr><td>{}</td><td>{}</td></tr>", escape(status), text(&response["description"]))?;
    }
    page.write_str("</table></div></details>")
}

/// The deepest chain of references between schemas that is followed, in case of a cycle.
const MAX_DEPTH: usize = 8;

/// Collects the fields of a schema, including those of its parts, each with whether it is required.
fn collect_fields<'a>(
    docs: &'a Value,
    schema: &'a Value,
    to: &mut Vec<(&'a str, &'a Value, bool)>,
    depth: usize,
) {
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return collect_fields(docs, &docs["components"]["schemas"][name], to, depth + 1);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        collect_fields(docs, part, to, depth + 1);
    }
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|r| r == name));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        to.push((name, field, required(name)));
    }
}

/// Returns the type of a field in words.
fn kind(schema: &Value) -> String {
    let many = |schemas: &Value| {
        let kinds = schemas.as_array().into_iter().flatten().map(kind).filter(|kind| kind != "null");
        kinds.collect::<Vec<_>>().join(" or ")
    };
    if let Some(name) = schema["$ref"].as_str() {
        return name.rsplit('/').next().unwrap_or(name).to_owned();
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => format!("list of {}", self::kind(&schema["items"])),
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            kinds
                .map(|kind| match kind {
                    "array" => format!("list of {}", self::kind(&schema["items"])),
                    kind => kind.to_owned(),
                })
                .collect::<Vec<_>>()
                .join(" or ")
        }
        _ if schema["oneOf"].is_array() => many(&schema["oneOf"]),
        _ if schema["anyOf"].is_array() => many(&schema["anyOf"]),
        _ => "anything".into(),
    }
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
