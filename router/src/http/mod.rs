//! The HTTP surface. There is one folder for each API, and [`router`] puts them together in the
//! table of `routes`.
//!
//! The APIs translate their requests for the chat core (`crate::chat`) or for
//! [`Service`](crate::service::Service), and write the answers in their own form.

mod adapter_admin;
mod admin_key;
mod answer_pipeline;
mod anthropic;
mod api;
mod app;
mod auth;
mod body;
mod encoding;
mod examples;
mod fair_by;
mod field_names;
mod fields;
mod grammar;
mod groups;
mod headers;
mod health;
mod ignored;
mod json_errors;
mod keys;
mod kserve;
mod layers;
mod metrics;
mod model_name;
mod models;
mod offload;
mod openai;
mod openapi;
mod platforms;
mod request;
mod routes;
mod sampling;
mod scores;
mod sse;
mod tei;
mod tgi;
mod thinking;
mod unknown;
mod vectors;

#[cfg(test)]
mod tests;

pub use axum::http::HeaderValue;
use axum::{Router, middleware};

pub use self::adapter_admin::{AdapterAdmin, FindAdapter, FindError, FoundAdapter};
use self::app::App;
pub use self::app::{HttpConfig, PlatformRoutes};
pub(crate) use self::body::{BodyOutcome, SharedBodyOutcome};
pub(crate) use self::encoding::BodyMemory;
pub use self::fair_by::{FairBy, UnknownFairBy};
pub(crate) use self::health::{probe_paths, stuck};
pub use self::keys::{ApiKey, ApiKeyError, ApiKeys};
pub use self::openapi::openapi;
pub use self::routes::RouteTaken;
use crate::service::Service;
use crate::web;

/// Returns the routes of a service, with the layers that apply to all of them.
pub fn router(service: Service, config: HttpConfig) -> Router {
    let app = App::new(service, config);
    let config = &app.config;
    let needs_key = !config.api_keys.is_empty();
    let (routes, docs) = routes::described(&config.platform).split_for_parts();
    let mut routes = routes
        .merge(routes::chosen(&config.platform))
        .merge(web::api_docs::routes(&openapi::complete(docs, needs_key), !config.disable_ui));
    if !config.disable_ui {
        routes = routes.merge(web::ui::routes(&app.service, needs_key));
    }
    // The layer that is added last sees a request first.
    routes
        .fallback(unknown::path)
        .layer(middleware::from_fn(unknown::method))
        .layer(middleware::from_fn_with_state(app.clone(), encoding::decode))
        .layer(middleware::from_fn_with_state(app.clone(), auth::require_key))
        .layer(middleware::from_fn_with_state(app.clone(), body::limit))
        .layer(middleware::from_fn_with_state(app.clone(), body::explain))
        .layer(layers::cors(config))
        .layer(middleware::from_fn(request::follow))
        .with_state(app.clone())
}
