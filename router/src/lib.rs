//! Everything per request: HTTP, tokenizer, templates, scheduling, streaming, metrics, supervision of shards.

pub mod assets;
pub mod engine;
pub mod text;

#[cfg(test)]
mod test_support;
