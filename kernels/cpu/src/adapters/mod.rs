//! Low-rank adapters of single sequences, added to the results of matrix products.
//!
//! An adapter's products take two phases. *Shrink* multiplies the inputs of each token by the rows
//! of the first matrices: a feature is a sum over many inputs, so that vectors run over inputs.
//! *Expand* adds the products of features and the second matrices to the outputs: an output is a
//! sum over few features, so that vectors run over outputs. Tokens with the same adapter are
//! computed together, so that its weights are read once for all of them.
//!
//! The order of each sum is fixed: it depends neither on the other tokens nor on the division of
//! the work.

mod adapt;
mod expand;
mod pool;
mod shrink;

pub use pool::Adapters;
