//! Everything per request: HTTP, tokenizer, templates, scheduling, streaming, metrics, supervision of shards.

pub mod engine;
pub mod scheduler;
