//! Models of vectors in the layout of sentence-transformers: which states of a text are pooled, and
//! what happens to the vector after that.
//!
//! ```mermaid
//! flowchart LR
//!     text --> prompt["prompt, lower case"] --> tokens --> model["model (shards)"]
//!     model --> pooling["pooling (shards)"] --> modules["modules (router)"] --> vector
//! ```
//!
//! | file | its job |
//! |---|---|
//! | `configuration` | numbers in configurations, and errors about their files |
//! | `model` | what a folder says about vectors |
//! | `folder` | reads `modules.json` and the files that it names |
//! | `pooling` | the modes of pooling, and their configuration |
//! | `layers`, `activation` | the modules after the pooling |

mod activation;
mod configuration;
mod folder;
mod layers;
mod model;
mod pooling;

pub use configuration::EmbeddingError;
pub use folder::configuration_files;
pub(crate) use folder::read;
pub(crate) use layers::normalized;
pub use model::{ChosenPooling, EmbeddingFiles, EmbeddingModel, MODULES, TokenBound};
pub use pooling::{PoolingMode, UnknownPooling};

#[cfg(test)]
mod tests;
