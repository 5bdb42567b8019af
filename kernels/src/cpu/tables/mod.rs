//! Products by weights whose codes stand for numbers of a table: FP8 (see [`crate::fp8`]) and NF4
//! (see [`crate::quantize::nf4`]).
//!
//! Codes become bf16 numbers in registers, and pairs of them are multiplied with activations in
//! bf16, where the machine has the instruction; elsewhere both are f32. FP8 numbers are exact in
//! either type. The values of NF4 are rounded to bf16 with the activations.
//!
//! The columns of a row are cut into groups with a factor each. The products of a group are one
//! chain of sums, in the order of the columns; a chain is multiplied by its factor and added to the
//! ones before it.

mod linear;
mod pack;
mod product;
mod widen;

pub(super) use pack::{TableFormat, TablePanels};
