//! The page: its header, its contents, the routes by their tags, and the types.

use std::fmt::{Result, Write};

use serde_json::Value;
use utoipa::openapi::OpenApi;

use super::operation::{self, Operation};
use super::schema::{self, escape, prose};

/// Returns the page. `has_ui` says whether it leads to `/ui`.
pub(super) fn html(docs: &OpenApi, has_ui: bool) -> String {
    let docs = serde_json::to_value(docs).unwrap_or_default();
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write(&docs, has_ui, &mut page);
    page
}

fn write(docs: &Value, has_ui: bool, page: &mut String) -> Result {
    let operations = operation::all(docs);
    let mut tags: Vec<&str> = operations.iter().map(|operation| operation.tag).collect();
    tags.sort_unstable();
    tags.dedup();
    let title = escape(docs["info"]["title"].as_str().unwrap_or_default());
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}: API</title>\
         <link rel=\"icon\" href=\"icon.svg\" type=\"image/svg+xml\"><link rel=\"stylesheet\" href=\"base.css\">\
         <link rel=\"stylesheet\" href=\"docs.css\"><script src=\"theme.js\"></script>\
         <script type=\"module\" src=\"docs.js\"></script></head><body>\
         <a class=\"skip\" href=\"#routes\">To the routes</a>"
    )?;
    write_header(docs, &title, has_ui, page)?;
    write_contents(&tags, &operations, docs["components"]["securitySchemes"].is_object(), page)?;
    write!(
        page,
        "<main id=\"routes\" tabindex=\"-1\"><p class=\"lead\">{}.</p>\
         <p id=\"nothing\" class=\"about\" hidden>No route and no type has these words.</p>",
        prose(docs["info"]["description"].as_str().unwrap_or_default())
    )?;
    for tag in &tags {
        write!(page, "<section><h2 id=\"{}\">{}</h2>", schema::anchor("tag", tag), escape(tag))?;
        for operation in of_tag(&operations, tag) {
            operation.write(docs, page)?;
        }
        page.write_str("</section>")?;
    }
    page.write_str("<section><h2 id=\"types\">Types</h2>")?;
    for (name, described) in docs["components"]["schemas"].as_object().into_iter().flatten() {
        schema::write_type(docs, name, described, page)?;
    }
    page.write_str("</section></main></body></html>")
}

fn of_tag<'a>(operations: &'a [Operation<'a>], tag: &'a str) -> impl Iterator<Item = &'a Operation<'a>> {
    operations.iter().filter(move |operation| operation.tag == tag)
}

fn write_header(docs: &Value, title: &str, has_ui: bool, page: &mut String) -> Result {
    let version = escape(docs["info"]["version"].as_str().unwrap_or_default());
    let chat = if has_ui { "<a href=\"../ui/\">Chat</a>" } else { "" };
    write!(
        page,
        "<header class=\"top\"><h1><img src=\"icon.svg\" alt=\"\" width=\"24\" height=\"24\"><span>{title} API</span></h1>\
         <p id=\"version\">{version}</p><nav aria-label=\"Page\">{chat}<a href=\"../api-doc/openapi.json\">openapi.json</a>\
         <button type=\"button\" id=\"theme\">Dark</button></nav></header>"
    )
}

/// Writes the search, the field for the key if the server needs one, and links to all routes.
fn write_contents(tags: &[&str], operations: &[Operation<'_>], needs_key: bool, page: &mut String) -> Result {
    page.write_str(
        "<aside aria-label=\"Contents\"><div id=\"find\" hidden><label for=\"search\" class=\"off-screen\">Search routes and \
         fields</label><input id=\"search\" type=\"search\" placeholder=\"Search routes and fields\" autocomplete=\"off\" \
         aria-describedby=\"found\"><p id=\"found\" class=\"about\" role=\"status\"></p></div>",
    )?;
    if needs_key {
        page.write_str(
            "<div id=\"key-row\" hidden><label for=\"key\">API key</label><input id=\"key\" type=\"password\" autocomplete=\"off\" \
             spellcheck=\"false\" aria-describedby=\"key-hint\"><small id=\"key-hint\">Kept until this tab is closed, and sent to \
             this server alone</small></div>",
        )?;
    }
    page.write_str("<nav id=\"contents\" aria-label=\"Routes\">")?;
    for tag in tags {
        write!(page, "<div><p><a href=\"#{}\">{}</a></p><ul>", schema::anchor("tag", tag), escape(tag))?;
        for Operation { method, path, id, .. } in of_tag(operations, tag) {
            write!(
                page,
                "<li><a href=\"#{id}\"><span class=\"method {method}\">{}</span> <code>{}</code></a></li>",
                method.to_uppercase(),
                escape(path)
            )?;
        }
        page.write_str("</ul></div>")?;
    }
    page.write_str("<div><p><a href=\"#types\">Types</a></p></div></nav></aside>")
}
