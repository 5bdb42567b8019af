//! Models written to new files: [`convert`] writes them in other file formats and element types,
//! and [`quantize`] writes quantized checkpoints.
//!
//! Both read anything that can be served, row by row. The result appears in its place when it is
//! complete, so that a run that fails leaves nothing behind.
//!
//! Nothing here knows a device, a step or a process of a server.

pub mod convert;
mod partial;
pub mod quantize;
mod vectors;

pub use partial::PlaceError;
