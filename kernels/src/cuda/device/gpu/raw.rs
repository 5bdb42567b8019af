//! Handles and errors of the driver API.

use cudarc::driver::result::DriverError;

use crate::Error;

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
