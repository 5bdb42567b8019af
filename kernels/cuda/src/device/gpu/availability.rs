//! Finds the GPUs that can be used, without creating a context on any of them.

use std::ffi::c_int;

use cudarc::driver::result::{self, device};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use millrace_backend::{Error, Result};

use super::blas;
use super::raw::driver_error;
use crate::device::code::embedded;
use crate::device::code::nvrtc::Nvrtc;

/// The lowest compute capability that the kernels are written for: Ampere.
const OLDEST: (u32, u32) = (8, 0);

/// The oldest driver that has all the functions that are called, given as its CUDA version: tensor
/// maps came with 12.0.
const OLDEST_DRIVER: c_int = 12_000;

/// The number of GPUs that `CUDA_VISIBLE_DEVICES` shows, as the driver interprets it.
///
/// # Errors
/// [`Error::Device`] with one sentence: no driver, a driver that is too old, or no GPU.
pub(super) fn count() -> Result<usize> {
    // SAFETY: the call only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::Device("no NVIDIA driver (libcuda.so.1) found".to_owned()));
    }
    match result::init() {
        Ok(()) => {}
        Err(e) if e.0 == CUresult::CUDA_ERROR_NO_DEVICE => return Err(none_shown()),
        Err(e) => return Err(driver_error("cuInit", e)),
    }
    let version = driver_version()?;
    if version < OLDEST_DRIVER {
        return Err(too_old(version, OLDEST_DRIVER, ""));
    }
    match device::get_count().map_err(|e| driver_error("cuDeviceGetCount", e))? {
        0 => Err(none_shown()),
        count => Ok(count as usize),
    }
}

/// The number of GPUs before the first one that is not supported.
///
/// # Errors
/// [`Error::Device`] with one sentence if there is none: as for [`count`], or because a GPU is too
/// old or a library is missing.
pub(super) fn usable() -> Result<usize> {
    let count = count()?;
    let version = driver_version()?;
    let toolkit = if embedded::FATBINS.is_empty() { None } else { Some(embedded::TOOLKIT) };
    // Embedded machine code runs on drivers of its toolkit's major version and later. For older
    // drivers NVRTC compiles code that they accept.
    let is_embedded_usable = toolkit.is_some_and(|toolkit| version / 1000 >= toolkit);
    if !is_embedded_usable && let Err(absent) = Nvrtc::open() {
        return Err(match toolkit {
            Some(toolkit) => too_old(version, 1000 * toolkit, &format!(", or NVRTC: {absent}")),
            None => Error::Device(format!("this build embeds no machine code of its kernels, and {absent}")),
        });
    }
    blas::version()?;
    for ordinal in 0..count {
        match check_age(ordinal) {
            Err(why) if ordinal == 0 => return Err(why),
            Err(_) => return Ok(ordinal),
            Ok(()) => {}
        }
    }
    Ok(count)
}

fn check_age(ordinal: usize) -> Result<()> {
    let device = device::get(ordinal as i32).map_err(|e| driver_error("cuDeviceGet", e))?;
    let name = device::get_name(device).map_err(|e| driver_error("cuDeviceGetName", e))?;
    let part = |which| {
        // SAFETY: the device came from the driver.
        let value = unsafe { device::get_attribute(device, which) };
        value.map(|v| v as u32).map_err(|e| driver_error("cuDeviceGetAttribute", e))
    };
    let capability = (
        part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    check_capability(&name, capability)
}

/// Returns an error for a GPU that is too old for the kernels.
pub(super) fn check_capability(name: &str, capability: (u32, u32)) -> Result<()> {
    if capability >= OLDEST {
        return Ok(());
    }
    let ((major, minor), (oldest, of)) = (capability, OLDEST);
    Err(Error::Device(format!(
        "{name} has compute capability {major}.{minor}; {oldest}.{of} (Ampere) or later is needed"
    )))
}

/// The CUDA version of the driver.
pub(super) fn driver_version() -> Result<c_int> {
    let mut version = 0;
    // SAFETY: the driver is loaded, and the argument points to an integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(|e| driver_error("cuDriverGetVersion", e))?;
    Ok(version)
}

fn too_old(version: c_int, oldest: c_int, alternative: &str) -> Error {
    let dotted = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
    let (version, oldest) = (dotted(version), dotted(oldest));
    Error::Device(format!(
        "the NVIDIA driver supports CUDA {version}; CUDA {oldest} or later is needed{alternative}"
    ))
}

fn none_shown() -> Error {
    Error::Device(match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(shown) => format!("the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES is `{shown}`)"),
        Err(_) => "the NVIDIA driver shows no GPU".to_owned(),
    })
}
