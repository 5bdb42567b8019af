//! The OpenAPI description of all routes.

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, OpenApi, Ref, ResponseBuilder, SecurityRequirement};

use super::api::Api;
use super::app::PlatformRoutes;
use super::{examples, routes};
use crate::web;

/// The statuses of errors, with their descriptions.
const ERRORS: &[(u16, &str)] = &[
    (400, "The body is not JSON; on /v1 also: a field is wrong or not supported"),
    (401, "No valid API key"),
    (403, "The API key does not permit the request"),
    (404, "The model is not served here"),
    (413, "The body is too large"),
    (415, "The content type is not application/json"),
    (422, "A field is wrong or not supported"),
    (424, "The engine failed while it generated the answer"),
    (429, "Too many requests; Retry-After says when to try again"),
    (500, "The engine failed"),
    (503, "The model is loading, or the server is shutting down"),
];

/// Returns the description of the API as JSON, for a server that needs no key.
pub fn openapi() -> String {
    web::api_docs::to_json(&complete(routes::described(&PlatformRoutes::default()).into_openapi(), false))
}

/// Completes the description of all routes with the errors that they share. `needs_key` says
/// whether a POST needs an API key.
pub(super) fn complete(mut docs: OpenApi, needs_key: bool) -> OpenApi {
    // OpenAPI has no syntax of its own for a parameter that may contain slashes.
    let paths = std::mem::take(&mut docs.paths.paths);
    docs.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for (path, item) in &mut docs.paths.paths {
        let PathItem { post: Some(post), .. } = item else { continue };
        add_errors(path, post);
        add_example(path, post);
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

/// Adds the example of a request to the description of its body.
fn add_example(path: &str, operation: &mut Operation) {
    let content = operation.request_body.as_mut().and_then(|body| body.content.get_mut("application/json"));
    if let Some(content) = content {
        content.example = examples::example(path);
    }
}

/// Describes the errors of a route in the form of its API.
fn add_errors(path: &str, operation: &mut Operation) {
    let api = Api::of(path);
    for &(status, description) in ERRORS {
        // Below `/v1`, every mistake in a request has one status, and every failure has another.
        if api != Api::Tgi && matches!(status, 422 | 424) {
            continue;
        }
        let mut response = ResponseBuilder::new().description(description);
        let json = |schema| ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
        let text =
            || ContentBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String))).build();
        response = match (api, status) {
            (Api::Anthropic, _) => response.content("application/json", json("AnthropicError")),
            (Api::OpenAi, _) => response.content("application/json", json("OpenAiError")),
            (Api::Tgi, 401) => response,
            (Api::Tgi, 400 | 413 | 415) => response.content("text/plain", text()),
            // A wrong shape is answered in plain text, and a wrong value in JSON.
            (Api::Tgi, 422) => {
                response.content("application/json", json("TgiError")).content("text/plain", text())
            }
            (Api::Tgi, _) => response.content("application/json", json("TgiError")),
        };
        operation.responses.responses.entry(status.to_string()).or_insert_with(|| response.build().into());
    }
}
