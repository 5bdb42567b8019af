//! Tests of the real binary over real HTTP.
//!
//! They are one executable, because linking fifty takes minutes. Tests that a release build runs
//! for hours are executables of their own.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod adapter_changes;
mod adapter_turns;
mod adapters;
#[cfg(target_os = "linux")]
mod attack_grammar;
mod attack_logging;
mod attack_rows;
mod attack_serve;
mod attack_supervision;
mod attack_text;
mod bench;
mod clients;
mod combinations;
mod command_line;
mod convert_command;
mod cuda_sim;
mod cuda_sim_ranks;
mod demo_model;
mod disk_cache;
mod draft_model;
mod drafts;
mod embedders;
mod embeddings;
mod gguf_encoders;
mod gpu_memory;
mod grammar;
mod health;
mod host_cache;
mod hostile;
mod hub;
mod inputs;
mod interrupted;
mod keys;
mod late_masks;
mod latency;
mod lifecycle;
mod metrics;
mod model_files;
mod model_formats;
mod mtp;
mod nodes;
mod operator;
mod pipeline;
mod prefix;
mod promises;
mod quantize_command;
mod quantized;
mod real_weights;
mod recovery;
mod recurrent;
mod replicas;
mod rerank;
mod routes;
mod scoring;
mod shards;
mod terminal;
mod thinking;
mod tokenizer_cache;
mod traces;
