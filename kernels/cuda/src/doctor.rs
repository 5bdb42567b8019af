//! Examines which of NVIDIA's software and hardware this machine has.

use cudarc::driver::sys;
use millrace_backend::{Error, Result};

use super::comm::nccl::Nccl;
use super::device::gpu::blas_version;
use super::device::nvrtc::Nvrtc;
use super::device::{Driver as _, Gpu, embedded};

/// The result of one check.
#[derive(Debug)]
pub struct Finding {
    /// The name of the component.
    pub what: String,
    /// A description of the component, or why it was not found and how to install it.
    pub found: std::result::Result<String, String>,
    /// Whether GPUs cannot be used without it.
    pub needed: bool,
}

/// Checks the driver, the GPUs that `CUDA_VISIBLE_DEVICES` shows, and the libraries that computing
/// on them needs.
pub fn examine() -> Vec<Finding> {
    let finding = |what: &str, found: Result<String>, needed| Finding {
        what: what.to_owned(),
        found: found.map_err(|e| without_name(&e.to_string(), what)),
        needed,
    };
    let count = Gpu::count();
    let mut all = vec![finding("driver", driver(&count), true)];
    let count = count.unwrap_or(0);
    all.extend((0..count).map(|ordinal| finding(&format!("GPU {ordinal}"), gpu(ordinal), false)));
    all.push(finding("cuBLASLt", blas_version(), true));
    // The GPUs of one machine can work together without it.
    all.push(finding("NCCL", nccl(), false));
    let nvrtc = Nvrtc::open().map(|_| "found".to_owned());
    all.push(finding("NVRTC", nvrtc, embedded::FATBINS.is_empty()));
    let kernels = embedded::FATBINS.len();
    let embedded = match kernels {
        0 => Err(Error::Device(
            "this build embeds no machine code of its kernels: NVRTC compiles them when they are first used"
                .to_owned(),
        )),
        _ => Ok(format!("machine code of {kernels} modules")),
    };
    all.push(finding("kernels", embedded, false));
    all
}

/// Removes the name of a component from the begin of a text that stands behind it.
fn without_name(text: &str, name: &str) -> String {
    text.strip_prefix(name).map_or(text, str::trim_start).to_owned()
}

fn driver(count: &Result<usize>) -> Result<String> {
    let count = match count {
        Ok(count) => *count,
        Err(error) => return Err(Error::Device(error.to_string())),
    };
    let mut version = 0;
    // SAFETY: the driver is loaded, and the argument points to an integer.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    result.result().map_err(|e| Error::Device(format!("cuDriverGetVersion: {:?}", e.0)))?;
    let gpus = if count == 1 { "GPU" } else { "GPUs" };
    Ok(format!("CUDA {}.{}, {count} {gpus}", version / 1000, version % 1000 / 10))
}

fn gpu(ordinal: usize) -> Result<String> {
    let gpu = Gpu::new(ordinal)?;
    let properties = gpu.properties();
    let (major, minor) = properties.capability;
    let gib = |bytes: usize| bytes as f64 / f64::from(1u32 << 30);
    let memory = gpu.memory_bytes().map_or_else(String::new, |(free, total)| {
        format!(", {:.1} of {:.1} GiB free", gib(free), gib(total))
    });
    let name = gpu.name();
    Ok(format!(
        "{name}, compute capability {major}.{minor}, {} multiprocessors{memory}",
        properties.multiprocessors
    ))
}

fn nccl() -> Result<String> {
    let nccl = Nccl::open()?;
    Ok(format!("{} ({})", nccl.version_name()?, nccl.path()))
}
