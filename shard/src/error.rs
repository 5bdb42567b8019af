//! What can go wrong in a shard, in words for the operator.

use crate::model::Slot;
use crate::plan::PlanError;
use crate::state::StepError;

/// Why a shard could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device refused.
    #[error(transparent)]
    Device(#[from] millrace_kernels::Error),
    /// A file of the checkpoint is damaged, incomplete or of another kind.
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::Error),
    /// `config.json` describes a model that cannot be computed.
    #[error(transparent)]
    Config(#[from] crate::families::ConfigError),
    /// The model cannot be cut into as many shares as there are ranks.
    #[error(transparent)]
    Indivisible(#[from] crate::split::Indivisible),
    /// Another rank was lost.
    #[error("the other ranks: {0}")]
    Collective(#[from] crate::collective::CollectiveError),
    /// The memory does not suffice, or limits contradict each other.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A weight does not have the shape that the model's configuration asks for.
    #[error(
        "the weight for {slot:?} is [{rows}, {cols}], but the configuration asks for [{want_rows}, {want_cols}]"
    )]
    WeightShape {
        /// The place of the weight.
        slot: Slot,
        /// Rows found.
        rows: usize,
        /// Columns found.
        cols: usize,
        /// Rows asked for.
        want_rows: usize,
        /// Columns asked for.
        want_cols: usize,
    },
    /// The router sent a step that contradicts the state of the slots.
    #[error("step {id} cannot be run: {source}")]
    Step {
        /// The step's number.
        id: u64,
        /// What is wrong with it.
        source: StepError,
    },
    /// The router sent something that is no message of the contract.
    #[error("the router sent an empty message; router and shard must be of the same version")]
    EmptyMessage,
    /// The router sent a message that has no place at this point.
    #[error("the router sent a message at the wrong time; router and shard must be of the same version")]
    OutOfPlace,
    /// The router could not be reached.
    #[error("cannot connect to the router at {address}: {source}")]
    Connect {
        /// Where it should be.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The router and this rank do not belong together.
    #[error("the router at {address}: {source}")]
    Handshake {
        /// Where it is.
        address: String,
        /// What does not fit.
        source: millrace_proto::handshake::HandshakeError,
    },
    /// The connection to the router failed.
    #[error("connection to the router: {0}")]
    Connection(#[from] millrace_proto::FrameError),
    /// The thread that reads the router's messages could not be started.
    #[error("cannot start the thread that reads the router's messages: {0}")]
    Reader(std::io::Error),
    /// The thread that watches for the parent's end, or that shows the parent a sign of life, could not be started.
    #[error("cannot start a thread for the parent process: {0}")]
    Lifeline(std::io::Error),
    /// An option that this version cannot honour.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    /// Whether another shard that is started in place of this one would fail for the same reason.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self, Error::Checkpoint(crate::checkpoint::Error::Changed { .. }))
    }
}
