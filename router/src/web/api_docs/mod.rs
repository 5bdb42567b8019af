//! The documentation of the API: `/api-doc/openapi.json`, and a page at `/docs/`.
//!
//! The server writes the page from the description once. Without scripts the page is complete
//! except for the search and the forms that send requests.
//!
//! | file | its job |
//! |---|---|
//! | `page` | the page: its header, its contents, and the routes by their tags |
//! | `operation` | one route: its parameters, its fields, its statuses, and an example |
//! | `schema` | the fields and types of schemas |
//! | `docs.js`, `search.js`, `try.js` | the search, and the forms that send requests |

mod operation;
mod page;
mod schema;

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use utoipa::openapi::OpenApi;

use super::file::{self, CSS, File, HTML, SCRIPT, SVG};

/// The path that leads to the page.
pub(crate) const PAGE_PATH: &str = "/docs";

/// The path of the description as JSON.
pub(crate) const JSON_PATH: &str = "/api-doc/openapi.json";

/// The files that the page loads. Some belong to `/ui` too, which may be left out.
pub(crate) const FILES: &[File] = &[
    File::new("/docs/icon.svg", SVG, include_str!("../ui/icon.svg")),
    File::new("/docs/base.css", CSS, include_str!("../ui/base.css")),
    File::new("/docs/docs.css", CSS, include_str!("docs.css")),
    File::new("/docs/theme.js", SCRIPT, include_str!("../ui/theme.js")),
    File::new("/docs/dom.js", SCRIPT, include_str!("../ui/dom.js")),
    File::new("/docs/docs.js", SCRIPT, include_str!("docs.js")),
    File::new("/docs/search.js", SCRIPT, include_str!("search.js")),
    File::new("/docs/try.js", SCRIPT, include_str!("try.js")),
];

/// Returns the routes of the documentation, which is written once. `has_ui` says whether `/ui` is
/// served.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(docs: &OpenApi, has_ui: bool) -> Router<S> {
    let html: Arc<str> = page::html(docs, has_ui).into();
    let json: Arc<str> = to_json(docs).into();
    let openapi = move || async move { ([(header::CONTENT_TYPE, "application/json")], json.to_string()) };
    let page = move || async move { (file::headers(HTML), html.to_string()) };
    // The location is relative, so that it is right behind a proxy that serves this server below
    // another path.
    let redirect = async || (StatusCode::SEE_OTHER, [(header::LOCATION, "docs/")]).into_response();
    file::routes(FILES)
        .route(JSON_PATH, get(openapi))
        .route(PAGE_PATH, get(redirect))
        .route("/docs/", get(page))
}

/// Returns the description of the API as JSON.
pub(crate) fn to_json(docs: &OpenApi) -> String {
    serde_json::to_string(docs).unwrap_or_else(|error| {
        // The description consists of types that can be serialized, so only a bug can get here.
        tracing::error!(%error, "the description of the API could not be written");
        "{}".into()
    })
}
