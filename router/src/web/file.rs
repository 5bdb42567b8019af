//! The files of the pages, which are in the binary.

use axum::Router;
use axum::http::{HeaderName, header};
use axum::routing::get;

/// The content type of a page.
pub(super) const HTML: &str = "text/html; charset=utf-8";
/// The content type of a style sheet.
pub(super) const CSS: &str = "text/css; charset=utf-8";
/// The content type of a script.
pub(super) const SCRIPT: &str = "text/javascript; charset=utf-8";
/// The content type of a picture.
pub(super) const SVG: &str = "image/svg+xml";

/// The content security policy of both pages. A page may run its own scripts and send requests to
/// its own server. Trusted types are forbidden, so that no script can turn a text into HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// A file with its path below the server's root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    pub(crate) path: &'static str,
    pub(super) content_type: &'static str,
    pub(super) text: &'static str,
}

impl File {
    /// Returns the file with this path, content type and text.
    pub(super) const fn new(path: &'static str, content_type: &'static str, text: &'static str) -> File {
        File { path, content_type, text }
    }
}

/// Returns the headers of a file.
pub(super) fn headers(content_type: &'static str) -> [(HeaderName, &'static str); 5] {
    [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the server has other files at the same paths.
        (header::CACHE_CONTROL, "no-cache"),
    ]
}

/// Returns the routes of files.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(files: &'static [File]) -> Router<S> {
    files.iter().fold(Router::new(), |router, file| {
        router.route(file.path, get(move || async move { (headers(file.content_type), file.text) }))
    })
}
