//! Readers and writers of the files that models are published in.
//!
//! A [`Source`] is the place of a model's files. A [`Checkpoint`] maps the weights of a source and
//! hands out each tensor as bytes with an element type and a shape. This crate computes nothing
//! with tensors, and depends on no other crate of the project.
//!
//! Files are not trusted: every number in them is checked before it is used. Each error names the
//! file, and the tensor where there is one, and says what the user can do.

mod checkpoint;
mod cursor;
mod dtype;
mod error;
mod fault;
mod flm;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod ggml;
mod gguf;
mod guard;
mod header;
mod identity;
mod llama2c;
mod mapped_file;
mod model_file;
mod pytorch;
pub mod regular_file;
mod source;
mod special_numbers;
#[cfg(test)]
mod tests;
mod translated;
pub mod vocabulary;
mod writer;

pub use checkpoint::{Checkpoint, Tensor, TensorInfo};
pub use dtype::DType;
pub use error::{Error, HeaderFault, IndexFault, TensorFault};
pub use fault::FileFault;
pub use flm::{FlmKind, FlmTensor, FlmToken, flm_header};
pub use gguf::{
    GgufArchitecture, GgufOrder, GgufPlace, GgufTensor, GgufType, GgufValue, gguf_config, gguf_header,
    gguf_padding, split_model_name,
};
pub use identity::identity_of;
pub use llama2c::{Llama2cItem, Llama2cModel};
pub use mapped_file::{DanglingLink, dangling_link};
pub use source::Source;
pub use special_numbers::without_special_numbers;
pub use writer::{CheckpointWriter, NewTensor, WriteError};
