//! `/api-doc/openapi.json`, and the same as a page for people at `/docs/`.

mod page;

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::Redirect;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Components, Content, ContentBuilder, Ref, RefOr, Response, ResponseBuilder, SecurityRequirement,
};

use super::{App, HttpConfig, anthropic, health, kserve, openai, tgi};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Millrace",
        description = "Text generation: the APIs of text-generation-inference, OpenAI, Anthropic, KServe, SageMaker and Vertex AI"
    ),
    paths(super::metrics)
)]
struct Docs;

/// What may come instead of an answer.
const ERRORS: &[(u16, &str)] = &[
    (400, "The body is no JSON; on /v1 also: a field is wrong or not supported"),
    (401, "No valid API key"),
    (403, "The API key does not entitle to what is asked for"),
    (404, "The model is not served here"),
    (413, "The body is too large"),
    (415, "The content type is not application/json"),
    (422, "A field is wrong or not supported"),
    (424, "The engine failed while it answered"),
    (429, "Too many requests; Retry-After says when to come again"),
    (500, "The engine failed"),
    (503, "The model is loading, or the server is shutting down"),
];

/// Where an answer may come as a stream.
const STREAMS: &[&str] = &[
    "/",
    "/generate_stream",
    "/invocations",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
];

/// Pages load nothing from anywhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

pub(super) fn routes(config: &HttpConfig) -> Router<App> {
    let docs = docs(!config.api_keys.is_empty());
    let html: Arc<str> = page::of(&docs).into();
    let json: Arc<str> = written(&docs).into();
    let openapi = move || async move { ([(header::CONTENT_TYPE, "application/json")], json.to_string()) };
    let page = move || async move {
        let headers =
            [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)];
        (headers, html.to_string())
    };
    Router::new()
        .route("/api-doc/openapi.json", get(openapi))
        .route("/docs", get(async || Redirect::to("/docs/")))
        .route("/docs/", get(page))
}

/// The description of the API, as JSON.
pub fn openapi() -> String {
    written(&docs(false))
}

fn written(docs: &utoipa::openapi::OpenApi) -> String {
    serde_json::to_string(docs).unwrap_or_else(|error| {
        // Our own types; nothing can fail but a bug.
        tracing::error!(%error, "the API's description could not be written");
        "{}".into()
    })
}

/// Everything that is served, with the errors that all routes have in common.
fn docs(needs_key: bool) -> utoipa::openapi::OpenApi {
    let mut docs = Docs::openapi();
    for part in [
        tgi::Docs::openapi(),
        openai::Docs::openapi(),
        anthropic::Docs::openapi(),
        kserve::Docs::openapi(),
        health::Docs::openapi(),
    ] {
        docs.merge(part);
    }
    for (path, item) in &mut docs.paths.paths {
        let PathItem { post: Some(post), .. } = item else { continue };
        if STREAMS.contains(&path.as_str()) {
            add_stream(post);
        }
        add_errors(path, post);
        if needs_key {
            let requirement = |name| SecurityRequirement::new(name, Vec::<String>::new());
            post.security = Some(vec![requirement("bearer"), requirement("x-api-key")]);
        }
    }
    if needs_key {
        let components = docs.components.get_or_insert_with(Components::new);
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        let header = ApiKey::Header(ApiKeyValue::new("x-api-key"));
        components.add_security_scheme("x-api-key", SecurityScheme::ApiKey(header));
    }
    docs
}

/// The answer as server-sent events. Each has JSON as its data; those of `/v1/messages` and `/v1/responses` have names too.
fn add_stream(operation: &mut Operation) {
    let Some(RefOr::T(Response { content, .. })) = operation.responses.responses.get_mut("200") else {
        return;
    };
    let text = |about: &str| ObjectBuilder::new().schema_type(Type::String).description(Some(about));
    let event = ObjectBuilder::new()
        .property("event", text("Its name, if it has one"))
        .property("data", text("JSON; `[DONE]` ends OpenAI's streams"))
        .required("data");
    content.insert("text/event-stream".into(), Content::new(Some(event)));
}

fn add_errors(path: &str, operation: &mut Operation) {
    let is_openai = path.starts_with("/v1/");
    for &(status, description) in ERRORS {
        // OpenAI does not tell a wrong shape from a wrong value, nor one failure from another.
        if is_openai && matches!(status, 422 | 424) {
            continue;
        }
        let mut response = ResponseBuilder::new().description(description);
        let json = |schema| ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
        let text =
            || ContentBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String))).build();
        response = match status {
            _ if path.starts_with("/v1/messages") => {
                response.content("application/json", json("AnthropicError"))
            }
            _ if is_openai => response.content("application/json", json("OpenAiError")),
            401 => response,
            400 | 413 | 415 => response.content("text/plain", text()),
            // A wrong shape is told in a text, a wrong value in JSON.
            422 => response.content("application/json", json("TgiError")).content("text/plain", text()),
            _ => response.content("application/json", json("TgiError")),
        };
        operation.responses.responses.entry(status.to_string()).or_insert_with(|| response.build().into());
    }
}
