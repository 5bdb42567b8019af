//! The router handles everything per request: HTTP, chat, streaming, metrics, and the supervision
//! of shards. Three crates are below it: `millrace-answers` (grammars, tools, reasoning),
//! `millrace-text` (tokenizers, templates) and `millrace-scheduler`.
//!
//! A server is built from these parts: [`assets::Assets`] → [`engine::Engine`] →
//! [`service::Service`] → [`serve::serve`].

pub mod assets;
mod chat;
pub mod embedding;
pub mod engine;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod http;
pub mod kv_events;
pub mod metrics;
pub mod serve;
pub mod service;
mod turns;
mod web;

#[cfg(any(test, feature = "fuzz"))]
#[cfg_attr(not(test), allow(dead_code))]
mod test_support;
