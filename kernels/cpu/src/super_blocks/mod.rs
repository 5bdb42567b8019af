//! Products by weights in super-blocks (see [`millrace_numbers::formats::ggml::KFormat`]).
//!
//! Activations are quantized in each product, to signed bytes with one scale per row and
//! super-block. Dot products of sub-blocks are exact integers, and so are their products with the
//! scales of the sub-blocks and the sum of these. One fused operation applies the scale of a
//! super-block, and another one that of the minima. They come in ascending order, so that results
//! have the same bits on all instruction sets, for any number of rows and threads.

mod activations;
mod exact;
mod linear;
mod pack;
mod product;

pub(super) use activations::{BlockBuffer, row_bytes};
pub(super) use pack::KPanels;
