//! The errors of a shard, in words for the operator.

use millrace_model::adapters::AdapterError;
use millrace_model::families::{ConfigError, LoadError};
use millrace_model::memory_plan::PlanError;
use millrace_model::{WeightError, WeightSlot};

use crate::state::StepError;

/// The reason why a shard cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] millrace_backend::Error),
    /// A weight cannot be loaded.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// `config.json` describes a model that cannot be computed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The flag `--quantize` does not fit the checkpoint, or a quantized weight cannot be read.
    #[error(transparent)]
    Storage(#[from] millrace_model::StorageError),
    /// The model cannot be cut into as many shares as there are ranks.
    #[error(transparent)]
    Indivisible(#[from] millrace_model::split::Indivisible),
    /// A collective with the other ranks failed.
    #[error("the other ranks: {0}")]
    Collective(#[from] crate::collective::CollectiveError),
    /// The device has no kernels for a part of the model.
    #[error("{model_type} has {part}, which only the CPU computes; use --device cpu")]
    NoKernels {
        /// The type of the model.
        model_type: String,
        /// The part, in words.
        part: &'static str,
    },
    /// The layers of the model cannot be divided between the ranks of a pipeline.
    #[error(transparent)]
    NoPipeline(#[from] millrace_model::split::NoPipeline),
    /// There is not enough memory, or limits contradict each other.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device cannot load a matrix, such as one with a NaN that is to be quantized.
    #[error("the weight for {slot:?}: {source}")]
    Matrix {
        /// The weight.
        slot: WeightSlot,
        /// The reason.
        source: millrace_backend::Error,
    },
    /// The shape of a weight differs from the model's configuration.
    #[error(
        "the weight for {slot:?} is [{rows}, {cols}], but the configuration asks for [{want_rows}, {want_cols}]"
    )]
    WeightShape {
        /// The weight.
        slot: WeightSlot,
        /// Number of rows that were found.
        rows: usize,
        /// Number of columns that were found.
        cols: usize,
        /// Number of rows that the configuration asks for.
        want_rows: usize,
        /// Number of columns that the configuration asks for.
        want_cols: usize,
    },
    /// The router sent a step that contradicts the state of the slots.
    #[error("step {id} cannot be run: {source}")]
    Step {
        /// Number of the step.
        id: u64,
        /// The fault of the step.
        source: StepError,
    },
    /// The router sent an empty message.
    #[error("the router sent an empty message; router and shard must be of the same version")]
    EmptyMessage,
    /// The router sent a message that is not allowed at this point.
    #[error("the router sent a message at the wrong time; router and shard must be of the same version")]
    OutOfPlace,
    /// The connection to the router could not be opened.
    #[error("cannot connect to the router at {address}: {source}")]
    Connect {
        /// Address of the router.
        address: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The router and this rank do not belong to the same group.
    #[error("the router at {address}: {source}")]
    Handshake {
        /// Address of the router.
        address: String,
        /// The reason.
        source: millrace_proto::handshake::HandshakeError,
    },
    /// The connection to the router failed.
    #[error("connection to the router: {0}")]
    Connection(#[from] millrace_proto::FrameError),
    /// The thread that reads the router's messages could not be started.
    #[error("cannot start the thread that reads the router's messages: {0}")]
    Reader(std::io::Error),
    /// The thread that watches for the end of the parent, or that sends heartbeats to the parent,
    /// could not be started.
    #[error("cannot start a thread for the parent process: {0}")]
    Lifeline(std::io::Error),
    /// The log of the steps on no device could not be opened or written.
    #[error("the log of the steps: {0}")]
    StepLog(std::io::Error),
    /// An adapter cannot be used.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The device computed a row of a benchmark, and its result is no token.
    #[error("a sequence of the benchmark failed: {0}")]
    BrokenRow(String),
    /// An option is not supported.
    #[error("{0}")]
    Unsupported(String),
}

impl From<millrace_numbers::Error> for Error {
    fn from(error: millrace_numbers::Error) -> Self {
        Error::Device(error.into())
    }
}

impl Error {
    /// Returns whether a shard that replaces this one would fail for the same reason.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self, Error::Weight(WeightError::Checkpoint(millrace_formats::Error::Changed { .. })))
    }
}

impl From<millrace_formats::Error> for Error {
    fn from(error: millrace_formats::Error) -> Self {
        Error::Weight(error.into())
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Config(error) => Error::Config(error),
            LoadError::Weight(error) => Error::Weight(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The router gives up at once after a lasting error, instead of starting the shard again.
    #[test]
    fn a_changed_checkpoint_is_a_lasting_error() {
        let (file, how) = ("model.safetensors".to_owned(), "it is new".to_owned());
        let changed = millrace_formats::Error::Changed { file: file.clone(), how };
        assert!(Error::from(changed).is_lasting());
        assert!(!Error::from(millrace_formats::Error::Cut { file }).is_lasting());
    }
}
