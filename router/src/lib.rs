//! Everything per request: HTTP, tokenizer, templates, scheduling, streaming, metrics, supervision of shards.
//!
//! A server is put together as [`assets::Assets`] → [`engine::Engine`] → [`service::Service`] → [`serve::serve`].

pub mod assets;
pub mod engine;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod grammar;
pub mod http;
pub mod metrics;
pub mod pooling;
pub mod scheduler;
pub mod serve;
pub mod service;
pub mod text;
pub mod tools;

#[cfg(any(test, feature = "fuzz"))]
#[cfg_attr(not(test), allow(dead_code))]
mod test_support;
