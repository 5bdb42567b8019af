//! Pages for people: the page to talk with the model at `/ui`, and the documentation of the API at
//! `/docs`.
//!
//! These pages do not depend on the HTTP surface, which passes them the service and the description
//! of its routes.

pub(crate) mod api_docs;
mod file;
pub(crate) mod ui;
