//! The main stream, and whether a launch on it may overlap with the kernel before it.
//!
//! On Hopper and later GPUs a kernel can start while the kernel directly before it in the stream
//! ends: programmatic dependent launch (CUDA programming guide). This hides the time between
//! kernels, of which a decode step has hundreds.
//!
//! A kernel may start early only if it waits by itself before it touches memory that other kernels
//! write. All kernels of this project do: `sass.txt` requires it of the machine code, and the
//! simulated device checks it in every launch. Because no kernel ends before it has waited, waiting
//! for the last kernel means waiting for all of them. Everything in the stream that is not a launch
//! (copies, events, graphs) starts after the kernels before it have ended.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::result::{function, stream};
use cudarc::driver::sys::{self, CUfunction_attribute};
use millrace_backend::Result;

use super::availability;
use super::raw::{DriverHandle, driver_error};

/// The lowest compute capability whose kernels can wait.
const FIRST_CAPABILITY: (u32, u32) = (9, 0);
/// The PTX version of kernels with the wait, which `ptx.cuh` asks for.
const FIRST_PTX: i32 = 90;
/// The oldest driver, given as its CUDA version, whose graphs distinguish such launches from plain
/// ones.
const FIRST_DRIVER: c_int = 12_030;

/// The main stream and the kind of work that was last submitted to it.
#[derive(Debug)]
pub(super) struct MainStream {
    stream: DriverHandle<sys::CUstream>,
    /// Whether the GPU, its driver and the user allow dependent launches.
    may_depend: bool,
    /// Whether the last work in the stream is a kernel. A launch after anything else is a plain
    /// one, because only kernels promise to wait by themselves.
    behind_kernel: AtomicBool,
}

impl MainStream {
    /// Creates a stream in the current context. If `MILLRACE_PLAIN_LAUNCHES` is set in the
    /// environment, all launches are plain.
    pub(super) fn new(capability: (u32, u32)) -> Result<MainStream> {
        let stream =
            stream::create(stream::StreamKind::NonBlocking).map_err(|e| driver_error("cuStreamCreate", e))?;
        let is_wanted = std::env::var_os("MILLRACE_PLAIN_LAUNCHES").is_none();
        let may_depend = is_wanted && can_depend(capability, availability::driver_version()?);
        Ok(MainStream { stream: DriverHandle(stream), may_depend, behind_kernel: AtomicBool::new(false) })
    }

    /// The stream, to submit anything but a kernel.
    pub(super) fn plain(&self) -> sys::CUstream {
        self.behind_kernel.store(false, Ordering::Relaxed);
        self.stream.0
    }

    /// The stream, to submit a kernel, and whether that kernel may start while the one before it
    /// ends.
    pub(super) fn for_kernel(&self) -> (sys::CUstream, bool) {
        (self.stream.0, self.behind_kernel.swap(true, Ordering::Relaxed) && self.may_depend)
    }
}

fn can_depend(capability: (u32, u32), driver: c_int) -> bool {
    capability >= FIRST_CAPABILITY && driver >= FIRST_DRIVER
}

/// Whether the function was compiled with the wait. It was not if the driver compiled it from the
/// PTX for an older GPU.
pub(super) fn waits(function: sys::CUfunction) -> Result<bool> {
    // SAFETY: the function is loaded.
    let ptx = unsafe {
        function::get_function_attribute(function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)
    };
    ptx.map(|version| version >= FIRST_PTX).map_err(|e| driver_error("cuFuncGetAttribute", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependent_launches_need_hopper_and_a_driver_for_cuda_12_3() {
        assert!(can_depend((9, 0), 12_030) && can_depend((12, 0), 13_000));
        assert!(!can_depend((8, 9), 13_000) && !can_depend((9, 0), 12_020));
    }
}
