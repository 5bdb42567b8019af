//! The OpenAPI description, compared with the requests of other tests.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::rows::{GETS, posts};
use super::{HttpConfig, Script, Server};
use crate::http::ApiKeys;

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
    let expected: BTreeSet<_> = posts().iter().map(|(path, _)| exact(path)).collect();
    assert_eq!(names(&docs, "post"), expected);
    let also = "/v2/models/tgi/versions/1";
    let expected: BTreeSet<_> = GETS.iter().filter(|path| **path != also).map(|path| exact(path)).collect();
    assert_eq!(names(&docs, "get"), expected);

    let redirect = server.get("/docs").await;
    assert_eq!((redirect.status, redirect.header("location")), (StatusCode::SEE_OTHER, "/docs/"));
    let page = server.get("/docs/").await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    for path in docs["paths"].as_object().unwrap().keys() {
        assert!(page.body.contains(&format!("<code>{path}</code>")), "{path}");
    }
    for field in ["repetition_penalty", "max_completion_tokens", "stop_sequences", "max_output_tokens"] {
        assert!(page.body.contains(&format!("<code>{field}</code>")), "{field}");
    }
    let elsewhere = ["http://", "https://", "<script", "src=", "url("];
    assert!(elsewhere.iter().all(|text| !page.body.contains(text)), "the page loads nothing");
    assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
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
