//! Tests of a shard: its numbers beside those of independent computations, and its loop over a real
//! socket.
//!
//! They are one executable, because each executable would compile the decoder anew for the same
//! devices.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail as tests do")]

mod adapters;
mod allocations;
#[cfg(unix)]
mod collective;
mod common;
mod convert_files;
mod convert_gguf;
mod decoder;
mod encoders;
mod golden;
#[cfg(feature = "cpu-sim")]
mod graphs;
mod host_layers;
#[cfg(unix)]
mod lifeline;
#[cfg(unix)]
mod masks;
mod mtp;
mod pipeline;
mod quantize_at_load;
mod quantize_checkpoint;
mod quantized;
#[cfg(feature = "cpu-sim")]
mod quantized_gpu;
mod quantized_heads;
mod remote_code;
#[cfg(unix)]
mod serve;
mod split;
#[cfg(unix)]
mod stories;
