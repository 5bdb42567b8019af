//! Tests of the files that are written, read again without a decoder. The tests of the shard
//! compute with them.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail as tests do")]

mod files;
mod gguf;
mod quantize;
