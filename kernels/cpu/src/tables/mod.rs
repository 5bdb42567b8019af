//! Products by weights whose codes stand for numbers: FP8 (see [`millrace_numbers::formats::fp8`]),
//! NF4 (see [`millrace_numbers::formats::nf4`]), and other codes of four bits that a checkpoint
//! stores with their table.
//!
//! Codes become bf16 numbers in registers, and pairs of them are multiplied with activations in
//! bf16, where the machine has the instruction; elsewhere both are f32. FP8 numbers are exact in
//! either type. The values of a table are rounded to bf16 with the activations.
//!
//! The columns of a row are cut into groups with a factor each. The products of a group are one
//! chain of sums, in the order of the columns; a chain is multiplied by its factor and added to the
//! ones before it.

mod linear;
#[cfg(target_arch = "x86_64")]
mod on_tiles;
mod pack;
mod product;
mod widen;

pub(super) use pack::{QUANTIZED_FP8, QUANTIZED_NF4, TablePanels};
