//! The GPUs whose limits a simulated device can have.

use millrace_backend::{Error, Result};

use super::super::driver::Properties;

/// The limits of a real GPU, which a simulated device applies to every launch.
///
/// The figures are those of the CUDA C++ programming guide, "Compute capabilities". All of these
/// GPUs have 64 Ki registers per multiprocessor and per block, and 1024 threads per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuModel {
    /// The name, as `MILLRACE_SIM_GPU` has it.
    pub name: &'static str,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Bytes of static and dynamic shared memory that a block can have, if a kernel asks for it.
    pub shared_per_block: usize,
}

/// Multiprocessors of every simulated device: few, so that small tests need several waves of
/// blocks.
const MULTIPROCESSORS: u32 = 6;

impl GpuModel {
    /// All GPUs. The first is the default: it has the least shared memory.
    pub const ALL: [GpuModel; 7] = [
        GpuModel { name: "l40s", capability: (8, 9), shared_per_block: 99 << 10 },
        GpuModel { name: "rtx4090", capability: (8, 9), shared_per_block: 99 << 10 },
        GpuModel { name: "a10", capability: (8, 6), shared_per_block: 99 << 10 },
        GpuModel { name: "a100", capability: (8, 0), shared_per_block: 163 << 10 },
        GpuModel { name: "h100", capability: (9, 0), shared_per_block: 227 << 10 },
        GpuModel { name: "h200", capability: (9, 0), shared_per_block: 227 << 10 },
        GpuModel { name: "b200", capability: (10, 0), shared_per_block: 227 << 10 },
    ];

    /// The GPU of this name.
    ///
    /// # Errors
    /// [`Error::Unsupported`] that lists the known names.
    pub fn named(name: &str) -> Result<GpuModel> {
        GpuModel::ALL.into_iter().find(|model| model.name == name).ok_or_else(|| {
            let known: Vec<&str> = GpuModel::ALL.iter().map(|model| model.name).collect();
            Error::Unsupported(format!("no simulated GPU `{name}`: it must be one of {}", known.join(", ")))
        })
    }

    /// The GPU that `MILLRACE_SIM_GPU` names, or the default.
    ///
    /// # Errors
    /// As for [`GpuModel::named`].
    pub fn from_environment() -> Result<GpuModel> {
        match std::env::var("MILLRACE_SIM_GPU") {
            Ok(name) => {
                GpuModel::named(&name).map_err(|e| Error::Unsupported(format!("MILLRACE_SIM_GPU: {e}")))
            }
            Err(_) => Ok(GpuModel::ALL[0]),
        }
    }

    /// The properties of a simulated device with these limits. Instructions of Hopper alone are not
    /// simulated, whatever the compute capability.
    pub(super) fn properties(self) -> Properties {
        Properties {
            capability: self.capability,
            runs_hopper_kernels: false,
            multiprocessors: MULTIPROCESSORS,
            shared_per_block: self.shared_per_block,
            l2_bytes: 1 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_the_least_shared_memory() {
        let least = GpuModel::ALL.iter().map(|model| model.shared_per_block).min();
        assert_eq!(Some(GpuModel::ALL[0].shared_per_block), least);
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        assert_eq!(GpuModel::named("a100").unwrap().capability, (8, 0));
        let said = GpuModel::named("v100").unwrap_err().to_string();
        assert!(said.contains("`v100`") && said.contains("l40s, rtx4090, a10, a100"), "{said}");
    }
}
