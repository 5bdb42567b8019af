//! One file per subcommand.

pub(crate) mod chat;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod node;
pub(crate) mod serve;
pub(crate) mod shard;
