//! The OpenAPI description, compared with the requests of other tests.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::rows::{GETS, posts};
use super::{HttpConfig, Script, Server};
use crate::http::ApiKeys;
use crate::http::adapter_admin::ADMIN_PATHS;

pub(super) async fn openapi(server: &Server) -> Value {
    server.get("/api-doc/openapi.json").await.json()
}

fn names(docs: &Value, method: &str) -> BTreeSet<String> {
    let paths = docs["paths"].as_object().unwrap();
    paths.iter().filter(|(_, item)| item.get(method).is_some()).map(|(path, _)| path.clone()).collect()
}

/// Resolves a reference to a schema.
pub(super) fn resolve<'a>(docs: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => {
            let schema = &docs["components"]["schemas"][name.strip_prefix("#/components/schemas/").unwrap()];
            assert!(schema.is_object(), "{name} is not described");
            schema
        }
        None => schema,
    }
}

fn check_references(docs: &Value, value: &Value) {
    resolve(docs, value);
    match value {
        Value::Object(fields) => fields.values().for_each(|value| check_references(docs, value)),
        Value::Array(items) => items.iter().for_each(|value| check_references(docs, value)),
        _ => {}
    }
}

/// Collects the fields of a request with their schemas, including those of its parts.
pub(super) fn fields<'a>(docs: &'a Value, schema: &'a Value, to: &mut Vec<(&'a str, &'a Value)>) {
    let schema = resolve(docs, schema);
    schema["allOf"].as_array().into_iter().flatten().for_each(|part| fields(docs, part, to));
    to.extend(
        schema["properties"].as_object().into_iter().flatten().map(|(name, field)| (name.as_str(), field)),
    );
}

#[tokio::test]
async fn every_route_has_a_request_in_the_tables_of_tests() {
    let server = Server::saying("x");
    let docs = openapi(&server).await;
    check_references(&docs, &docs);
    let exact = |path: &str| path.replace("/tgi", "/{model}").replace("org/model", "{id}");
    // The module `adapters` sends requests with the admin key.
    let with_admin_key = ADMIN_PATHS.iter().map(|path| exact(path));
    let expected: BTreeSet<_> = posts().iter().map(|(path, _)| exact(path)).chain(with_admin_key).collect();
    assert_eq!(names(&docs, "post"), expected);
    let also = "/v2/models/tgi/versions/1";
    let expected: BTreeSet<_> = GETS.iter().filter(|path| **path != also).map(|path| exact(path)).collect();
    assert_eq!(names(&docs, "get"), expected);
}

/// The values of attributes of the page that name other files or parts of the page.
fn links(page: &str) -> BTreeSet<&str> {
    let values = |name| page.split(name).skip(1).filter_map(|rest| rest.split('"').next());
    values("href=\"").chain(values("src=\"")).collect()
}

#[tokio::test]
async fn the_page_names_all_routes_and_fields_and_is_complete() {
    let server = Server::saying("x");
    let docs = openapi(&server).await;
    let redirect = server.get("/docs").await;
    assert_eq!((redirect.status, redirect.header("location")), (StatusCode::SEE_OTHER, "docs/"));
    let page = server.get("/docs/").await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    for path in docs["paths"].as_object().unwrap().keys() {
        assert!(page.body.contains(&format!("<code>{path}</code>")), "{path}");
    }
    for field in ["repetition_penalty", "max_completion_tokens", "stop_sequences", "max_output_tokens"] {
        assert!(page.body.contains(&format!("<code>{field}</code>")), "{field}");
    }
    let ids: Vec<_> = page.body.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "each part has its own anchor");
    for link in links(&page.body) {
        let Some(anchor) = link.strip_prefix('#') else { continue };
        assert!(ids.contains(&anchor), "{link} leads nowhere");
    }
}

#[tokio::test]
async fn the_page_loads_its_own_files_alone() {
    // The files do not depend on the other page.
    let config = HttpConfig { disable_ui: true, ..HttpConfig::default() };
    let server = Server::with(Script::Say("x".into()), 8, config);
    let page = server.get("/docs/").await;
    let mut wanted: Vec<String> = links(&page.body)
        .into_iter()
        .filter(|link| !link.starts_with('#'))
        .map(|link| link.strip_prefix("../").map_or(format!("/docs/{link}"), |link| format!("/{link}")))
        .collect();
    let mut seen = BTreeSet::new();
    while let Some(path) = wanted.pop() {
        let reply = server.get(&path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}");
        if !path.starts_with("/docs/") || !seen.insert(path.clone()) {
            continue;
        }
        let policy = reply.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}");
        for never in ["innerHTML", "eval(", "//cdn", "@import", "style=\""] {
            assert!(!reply.body.contains(never), "{path}: {never}");
        }
        let imports = reply.body.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next());
        wanted.extend(imports.map(|file| format!("/docs/{file}")));
    }
    assert_eq!(seen.len(), crate::web::api_docs::FILES.len(), "{seen:?}");
    let inline = ["<style", "<script>", " on", "style=\"", "http://", "https://"];
    assert!(inline.iter().all(|text| !markup(&page.body).contains(text)), "the policy refuses it");
    assert!(!page.body.contains("../ui/"), "there is no page to lead to");
    assert!(Server::saying("x").get("/docs/").await.body.contains("href=\"../ui/\""));
}

/// Returns the tags of a page without its texts.
fn markup(page: &str) -> String {
    page.split('<').skip(1).filter_map(|rest| rest.split('>').next()).map(|tag| format!("<{tag}>")).collect()
}

#[tokio::test]
async fn every_example_is_answered() {
    let server = Server::saying("x");
    let docs = openapi(&server).await;
    for (path, item) in docs["paths"].as_object().unwrap() {
        let Some(operation) = item.get("post") else { continue };
        let example = &operation["requestBody"]["content"]["application/json"]["example"];
        assert!(example.is_object(), "{path} has no example");
        // The module `adapters` sends the examples that need the admin key.
        if ADMIN_PATHS.contains(&path.as_str()) {
            continue;
        }
        let reply = server.post(&path.replace("{model}", "tgi"), example.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.body);
        assert!(!reply.headers.contains_key("x-millrace-ignored"), "{path}: every field counts");
    }
}

#[tokio::test]
async fn described_fields_are_the_fields_that_are_read() {
    let server = Server::saying("x");
    let docs = openapi(&server).await;
    for (path, body) in posts() {
        let described = path.replace("/tgi", "/{model}");
        let operation = &docs["paths"][&described]["post"];
        let schema = resolve(&docs, &operation["requestBody"]["content"]["application/json"]["schema"]);
        let mut known = Vec::new();
        fields(&docs, schema, &mut known);
        if path == "/invocations" {
            continue;
        }
        assert!(!known.is_empty(), "{path}");
        for field in body.as_object().unwrap().keys() {
            assert!(known.iter().any(|(name, _)| name == field), "{path}: {field} is taken, not described");
        }
        // No other field may be an object, so each that is read must refuse one.
        for (field, schema) in known {
            let kinds = schema["type"].to_string();
            if kinds == "null" || kinds.contains("object") {
                continue;
            }
            let mut wrong = body.clone();
            wrong[field] = json!({"no": "such thing"});
            let reply = server.post(path, wrong).await;
            assert!(reply.status.is_client_error(), "{path}: {field} {kinds}: {}", reply.status);
            let status = reply.status.as_u16().to_string();
            assert!(operation["responses"].get(&status).is_some(), "{path}: {status} is not described");
        }
    }
}

#[tokio::test]
async fn keys_are_described_where_they_are_needed() {
    let open = openapi(&Server::saying("x")).await;
    assert_eq!(open["paths"]["/generate"]["post"].get("security"), None);
    let config =
        HttpConfig { api_keys: ApiKeys::new(&["k".parse().unwrap()], None), ..HttpConfig::default() };
    let guarded = openapi(&Server::with(Script::Say("x".into()), 8, config)).await;
    assert_eq!(guarded["paths"]["/generate"]["post"]["security"], json!([{"bearer": []}, {"x-api-key": []}]));
    assert_eq!(guarded["paths"]["/info"]["get"].get("security"), None);
    assert_eq!(guarded["components"]["securitySchemes"]["x-api-key"]["in"], "header");
}
