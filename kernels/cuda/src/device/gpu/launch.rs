//! Launches of kernels on a GPU.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUlaunchAttributeID};
use millrace_backend::Result;

use super::context::Gpu;
use super::raw::driver_error;
use crate::device::driver::params::LaunchParams;
use crate::device::driver::{Grid, KernelName};

/// # Safety
/// As for [`crate::Driver::launch`].
pub(super) unsafe fn launch(
    gpu: &Gpu,
    function: KernelName,
    grid: Grid,
    params: LaunchParams<'_>,
) -> Result<()> {
    gpu.make_context_current()?;
    let loaded = gpu.kernels.load(function, grid.shared, &gpu.recorder)?;
    // The driver only reads the parameter.
    let mut all_params: [*mut c_void; 1] = [params.as_ptr().cast_mut()];
    let (stream, may_depend) = gpu.stream.for_kernel();
    let mut dependent = sys::CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let [bx, by, bz] = grid.blocks;
    let [tx, ty, tz] = grid.threads;
    let config = sys::CUlaunchConfig {
        gridDimX: bx,
        gridDimY: by,
        gridDimZ: bz,
        blockDimX: tx,
        blockDimY: ty,
        blockDimZ: tz,
        sharedMemBytes: grid.shared as u32,
        hStream: stream,
        attrs: &mut dependent,
        numAttrs: u32::from(may_depend && loaded.waits),
    };
    // SAFETY: the function is loaded and takes one parameter, which the caller guarantees. The
    // driver copies it together with the attribute.
    unsafe {
        sys::cuLaunchKernelEx(&config, loaded.function.0, all_params.as_mut_ptr(), std::ptr::null_mut())
    }
    .result()
    .map_err(|e| driver_error(&format!("launch of {}", function.name), e))
}
