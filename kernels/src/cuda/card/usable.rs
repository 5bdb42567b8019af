//! Which cards can be computed on, found out without a context on any.

use std::ffi::c_int;

use cudarc::driver::result::{self, device};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use super::{OLDEST, blas, failed};
use crate::cuda::modules;
use crate::cuda::nvrtc::Nvrtc;
use crate::{Error, Result};

/// The oldest driver that has all that is called of it, as the version of CUDA that it is for: tensor maps came with 12.0.
const OLDEST_DRIVER: c_int = 12_000;

/// How many cards `CUDA_VISIBLE_DEVICES` shows, as the driver understands it.
///
/// # Errors
/// [`Error::Device`] with one sentence: no driver, one that is too old, no card.
pub(super) fn count() -> Result<usize> {
    // SAFETY: the call only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::Device("there is no NVIDIA driver (libcuda.so.1) on this machine".to_owned()));
    }
    match result::init() {
        Ok(()) => {}
        Err(e) if e.0 == CUresult::CUDA_ERROR_NO_DEVICE => return Err(none_shown()),
        Err(e) => return Err(failed("cuInit", e)),
    }
    let version = driver_version()?;
    if version < OLDEST_DRIVER {
        return Err(too_old(version, OLDEST_DRIVER, ""));
    }
    match device::get_count().map_err(|e| failed("cuDeviceGetCount", e))? {
        0 => Err(none_shown()),
        count => Ok(count as usize),
    }
}

/// How many cards there are, up to the first that cannot be computed on.
///
/// # Errors
/// [`Error::Device`] with one sentence, if that is none: as for [`count`], or a card that is too old, or a library that is missing.
pub(super) fn usable() -> Result<usize> {
    let count = count()?;
    let version = driver_version()?;
    let embedded = if modules::FATBINS.is_empty() { None } else { Some(modules::TOOLKIT) };
    // Machine code runs on drivers of its toolkit's major version and later ones; NVRTC makes what an older driver takes.
    let is_embedded_usable = embedded.is_some_and(|toolkit| version / 1000 >= toolkit);
    if !is_embedded_usable && let Err(absent) = Nvrtc::open() {
        return Err(match embedded {
            Some(toolkit) => too_old(version, 1000 * toolkit, &format!(", or NVRTC: {absent}")),
            None => Error::Device(format!("this build has no machine code of its kernels, and {absent}")),
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
    let device = device::get(ordinal as i32).map_err(|e| failed("cuDeviceGet", e))?;
    let name = device::get_name(device).map_err(|e| failed("cuDeviceGetName", e))?;
    let part = |which| {
        // SAFETY: the device came from the driver.
        let value = unsafe { device::get_attribute(device, which) };
        value.map(|v| v as u32).map_err(|e| failed("cuDeviceGetAttribute", e))
    };
    let capability = (
        part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    check_capability(&name, capability)
}

/// Refuses a card that is too old for the kernels.
pub(super) fn check_capability(name: &str, capability: (u32, u32)) -> Result<()> {
    if capability >= OLDEST {
        return Ok(());
    }
    let ((major, minor), (oldest, of)) = (capability, OLDEST);
    Err(Error::Device(format!(
        "{name} has compute capability {major}.{minor}; {oldest}.{of} (Ampere) is the oldest that is supported"
    )))
}

/// The version of CUDA that the driver is for.
pub(super) fn driver_version() -> Result<c_int> {
    let mut version = 0;
    // SAFETY: the driver is there, and the argument is where the answer goes.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| failed("cuDriverGetVersion", e))?;
    Ok(version)
}

fn too_old(version: c_int, oldest: c_int, alternative: &str) -> Error {
    let dotted = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
    let (version, oldest) = (dotted(version), dotted(oldest));
    Error::Device(format!(
        "the NVIDIA driver is too old: it is for CUDA {version}, and one for CUDA {oldest} or later is needed{alternative}"
    ))
}

fn none_shown() -> Error {
    Error::Device(match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(shown) => format!("the NVIDIA driver shows no card (CUDA_VISIBLE_DEVICES is `{shown}`)"),
        Err(_) => "the NVIDIA driver shows no card".to_owned(),
    })
}
