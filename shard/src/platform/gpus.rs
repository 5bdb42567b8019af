//! The NVIDIA GPUs of this machine, for commands that run without a model.

use millrace_cuda::{Gpu, doctor};

/// Returns the number of GPUs that can be used, at least one.
///
/// # Errors
/// The reason why no GPU can be used, in one sentence.
pub fn usable_gpus() -> Result<usize, String> {
    Gpu::usable().map_err(|why| why.to_string())
}

/// A driver, library or device that GPU computing needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuRequirement {
    /// Its name.
    pub name: String,
    /// A description of what is installed, or the reason why nothing was found and what to do about
    /// it.
    pub found: Result<String, String>,
    /// Whether `--device cuda` needs it. Without the others, only some features are missing.
    pub is_required: bool,
}

/// Looks for everything that GPU computing needs.
pub fn check_gpu_requirements() -> Vec<GpuRequirement> {
    let requirement = |finding: doctor::Finding| GpuRequirement {
        name: finding.what.to_string(),
        found: finding.found,
        is_required: finding.needed,
    };
    doctor::examine().into_iter().map(requirement).collect()
}
