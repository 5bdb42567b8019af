//! Handles and errors of the driver API.

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUevent, CUresult};
use millrace_backend::{Error, Result};

/// A handle that the driver returned.
#[derive(Debug, Clone, Copy)]
pub(super) struct DriverHandle<T>(pub(super) T);

// SAFETY: the driver's handles may be used from any thread, as long as the context is current
// there; every call makes it current first.
unsafe impl<T> Send for DriverHandle<T> {}
// SAFETY: as above; the driver synchronizes concurrent calls.
unsafe impl<T> Sync for DriverHandle<T> {}

/// Converts a driver error, with the name of the failed call.
pub(super) fn driver_error(call: &str, error: DriverError) -> Error {
    let text = |found: std::result::Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned())
    };
    Error::Device(format!("{call}: {} ({})", text(error.error_string()), text(error.error_name())))
}

/// The milliseconds between two events.
///
/// cudarc calls `cuEventElapsedTime_v2`, which drivers have from CUDA 12.8 on, and ends the process
/// if a function is missing. All drivers have the first version of the function.
///
/// # Errors
/// [`Error::Device`]: the driver's error, for example if an event was not reached yet.
///
/// # Safety
/// The driver is loaded, and both events came from it, with timing, and were not destroyed.
pub(super) unsafe fn elapsed_milliseconds(start: CUevent, end: CUevent) -> Result<f32> {
    type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
    // SAFETY: the driver is loaded, and its function has this signature.
    let elapsed = unsafe { sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0") };
    let elapsed = elapsed.map_err(|e| Error::Device(format!("cuEventElapsedTime: {e}")))?;
    let mut milliseconds = 0.0;
    // SAFETY: the first argument points to the result; the caller guarantees the events.
    let code = unsafe { elapsed(&mut milliseconds, start, end) };
    code.result().map_err(|e| driver_error("cuEventElapsedTime", e))?;
    Ok(milliseconds)
}
