//! Products by weights that are integers in groups (see [`millrace_numbers::integers`]).
//!
//! Activations are quantized in each product, to signed bytes with one scale per row and group.
//! The dot product of a group is then an exact integer. Groups are added in ascending order by one
//! fused operation each, so that results have the same bits on all instruction sets, for any number
//! of rows and threads.

mod activations;
mod exact;
mod linear;
mod pack;
mod product;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub(super) use activations::{ActivationBuffer, STEP, quantize_group, row_bytes};
pub(super) use pack::{IntPanels, RowContents};
