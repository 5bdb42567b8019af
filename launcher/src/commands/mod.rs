//! One file per subcommand.

pub(crate) mod bench;
pub(crate) mod bench_http;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod download;
pub(crate) mod env;
pub(crate) mod generate;
pub(crate) mod gpus;
pub(crate) mod health;
pub(crate) mod inspect;
pub(crate) mod node;
pub(crate) mod quantize;
pub(crate) mod restart_groups;
pub(crate) mod serve;
pub(crate) mod shard;
