//! A device that executes the PTX that nvcc makes of the kernels, on the interpreter.
//!
//! `MILLRACE_PTX` names a folder with a file `MODULE.ptx` for each module, all for the same
//! architecture, which is the device's. `cargo xtask ptx` makes such folders. Work runs when it is
//! submitted. The interpreter's faults are the errors of launches.

mod device;
mod modules;
mod pinned;
mod product;
mod recording;
mod streams;

pub(crate) use device::PtxDevice;
