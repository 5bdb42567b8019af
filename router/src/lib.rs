//! Everything per request: HTTP, tokenizer, templates, scheduling, streaming, metrics, supervision of shards.
//!
//! A server is put together as [`assets::Assets`] → [`engine::Engine`] → [`service::Service`] → [`serve::serve`].

pub mod assets;
pub mod engine;
pub mod grammar;
pub mod http;
pub mod metrics;
pub mod pooling;
pub mod scheduler;
pub mod serve;
pub mod service;
pub mod text;
pub mod tools;

#[cfg(test)]
mod test_support;
