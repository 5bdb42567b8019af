//! One route of the page: its parameters, its fields, its statuses, and an example.

use std::fmt::{Result, Write};

use serde_json::Value;

use super::schema::{self, anchor, escape, kind, prose};

/// A route of the description.
pub(super) struct Operation<'a> {
    pub(super) tag: &'a str,
    /// The method in small letters.
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// The anchor of the route on the page.
    pub(super) id: String,
    described: &'a Value,
}

/// Returns all routes that have a tag, in the order of the description.
pub(super) fn all(docs: &Value) -> Vec<Operation<'_>> {
    let paths = docs["paths"].as_object().into_iter().flatten();
    let operations = paths.flat_map(|(path, item)| {
        let methods = item.as_object().into_iter().flatten();
        methods.filter_map(move |(method, described)| {
            let tag = described["tags"][0].as_str()?;
            Some(Operation { tag, method, path, id: anchor(method, path), described })
        })
    });
    operations.collect()
}

impl Operation<'_> {
    /// Writes the route as a folded part of the page.
    pub(super) fn write(&self, docs: &Value, page: &mut String) -> Result {
        let Operation { method, path, id, described, .. } = self;
        write!(
            page,
            "<details class=\"route\" id=\"{id}\" data-method=\"{method}\" data-path=\"{}\"><summary><h3>\
             <span class=\"method {method}\">{}</span> <code>{}</code></h3> <span class=\"says\">{}</span></summary><div class=\"more\">",
            escape(path),
            method.to_uppercase(),
            escape(path),
            prose(described["summary"].as_str().unwrap_or_default())
        )?;
        if let Some(more) = described["description"].as_str() {
            write!(page, "<p>{}</p>", prose(more))?;
        }
        self.write_parameters(page)?;
        self.write_body(docs, page)?;
        self.write_responses(page)?;
        page.write_str("</div></details>")
    }

    fn write_parameters(&self, page: &mut String) -> Result {
        let parameters = self.described["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        if parameters.is_empty() {
            return Ok(());
        }
        page.write_str("<h4>Parameters</h4><div class=\"wide\" tabindex=\"0\"><table class=\"parameters\"><thead><tr><th>Name</th><th>Place</th><th>Type</th><th>About</th></tr></thead><tbody>")?;
        for parameter in parameters {
            let name = parameter["name"].as_str().unwrap_or_default();
            let place = parameter["in"].as_str().unwrap_or_default();
            let is_required = parameter["required"] == true;
            write!(
                page,
                "<tr data-name=\"{0}\" data-place=\"{1}\" data-required=\"{is_required}\"><td><code>{0}</code>{2}</td><td>{1}</td><td>{3}</td><td>{4}</td></tr>",
                escape(name),
                escape(place),
                schema::required_mark(is_required),
                kind(&parameter["schema"]),
                prose(parameter["description"].as_str().unwrap_or_default())
            )?;
        }
        page.write_str("</tbody></table></div>")
    }

    /// Writes the fields of the body and an example of it.
    fn write_body(&self, docs: &Value, page: &mut String) -> Result {
        let content = &self.described["requestBody"]["content"]["application/json"];
        if content.is_null() {
            return Ok(());
        }
        write!(page, "<h4>Body</h4><p class=\"about\">JSON: {}</p>", kind(&content["schema"]))?;
        schema::write_fields(docs, &content["schema"], page)?;
        if !content["example"].is_null() {
            let example = serde_json::to_string_pretty(&content["example"]).unwrap_or_default();
            write!(
                page,
                "<figure class=\"code example\"><figcaption><span>Example</span></figcaption>\
                 <pre tabindex=\"0\" aria-label=\"An example of the body\"><code>{}</code></pre></figure>",
                escape(&example)
            )?;
        }
        Ok(())
    }

    fn write_responses(&self, page: &mut String) -> Result {
        page.write_str("<h4>Responses</h4><div class=\"wide\" tabindex=\"0\"><table><thead><tr><th>Status</th><th>Type</th><th>About</th></tr></thead><tbody>")?;
        for (status, response) in self.described["responses"].as_object().into_iter().flatten() {
            let contents = response["content"].as_object().into_iter().flatten();
            let kinds: Vec<_> =
                contents.map(|(media, content)| content_kind(media, &content["schema"])).collect();
            write!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(status),
                kinds.join(" or "),
                prose(response["description"].as_str().unwrap_or_default())
            )?;
        }
        page.write_str("</tbody></table></div>")
    }
}

/// Returns the type of a response as HTML. The type of JSON is its schema, and others are named.
fn content_kind(media: &str, schema: &Value) -> String {
    if media == "application/json" { kind(schema) } else { escape(media) }
}
