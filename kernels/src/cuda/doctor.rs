//! What of NVIDIA's software and hardware this machine has.

use cudarc::driver::sys;

use super::card::{Card, blas_version};
use super::driver::Driver as _;
use super::nccl::Nccl;
use super::nvrtc::Nvrtc;
use crate::{Error, Result};

/// One thing that was looked for.
#[derive(Debug)]
pub struct Finding {
    /// What.
    pub what: String,
    /// What was found, or why it was not and how to come by it.
    pub found: std::result::Result<String, String>,
    /// Whether cards cannot be used without it.
    pub needed: bool,
}

/// Looks for the driver, the cards that `CUDA_VISIBLE_DEVICES` shows, and the libraries that computing on them takes.
pub fn examine() -> Vec<Finding> {
    let finding = |what: &str, found: Result<String>, needed| Finding {
        what: what.to_owned(),
        found: found.map_err(|e| e.to_string()),
        needed,
    };
    let count = Card::count();
    let mut all = vec![finding("driver", driver(&count), true)];
    let count = count.unwrap_or(0);
    all.extend((0..count).map(|ordinal| finding(&format!("card {ordinal}"), card(ordinal), false)));
    all.push(finding("cuBLASLt", blas_version(), true));
    // Cards of one machine can do without.
    all.push(finding("NCCL", nccl(), false));
    let nvrtc = Nvrtc::open().map(|_| "found".to_owned());
    all.push(finding("NVRTC", nvrtc, super::modules::FATBINS.is_empty()));
    let kernels = super::modules::FATBINS.len();
    let embedded = match kernels {
        0 => Err(Error::Device(
            "this build has no machine code of its kernels: NVRTC compiles them on the card's machine"
                .to_owned(),
        )),
        _ => Ok(format!("machine code of {kernels} modules")),
    };
    all.push(finding("kernels", embedded, false));
    all
}

fn driver(count: &Result<usize>) -> Result<String> {
    let count = match count {
        Ok(count) => *count,
        Err(error) => return Err(Error::Device(error.to_string())),
    };
    let mut version = 0;
    // SAFETY: the driver is there, and the argument is where the answer goes.
    let asked = unsafe { sys::cuDriverGetVersion(&mut version) };
    asked.result().map_err(|e| Error::Device(format!("cuDriverGetVersion: {:?}", e.0)))?;
    let cards = if count == 1 { "card" } else { "cards" };
    Ok(format!("CUDA {}.{}, {count} {cards}", version / 1000, version % 1000 / 10))
}

fn card(ordinal: usize) -> Result<String> {
    let card = Card::new(ordinal)?;
    let properties = card.properties();
    let (major, minor) = properties.capability;
    let gib = |bytes: usize| bytes as f64 / f64::from(1u32 << 30);
    let memory = card.memory_bytes().map_or_else(String::new, |(free, total)| {
        format!(", {:.1} of {:.1} GiB free", gib(free), gib(total))
    });
    let name = card.name();
    Ok(format!(
        "{name}, compute capability {major}.{minor}, {} multiprocessors{memory}",
        properties.multiprocessors
    ))
}

fn nccl() -> Result<String> {
    let nccl = Nccl::open()?;
    Ok(format!("{} ({})", nccl.version_name()?, nccl.path()))
}
