//! `millrace gpus` and `millrace doctor`: what this machine has for inference on GPUs.

use anyhow::Result;
use millrace_shard::{GpuRequirement, check_gpu_requirements, usable_gpus};

/// Prints the number of usable GPUs, or one sentence with the reason why there is none. The process
/// that has started this one reads it.
pub(crate) fn count() -> Result<()> {
    match usable_gpus() {
        Ok(count) => println!("{count}"),
        Err(why) => println!("{why}"),
    }
    Ok(())
}

/// Prints one line per requirement of inference on GPUs, and whether this machine meets it.
pub(crate) fn check() -> Result<()> {
    let requirements = check_gpu_requirements();
    for GpuRequirement { name, found, is_required } in &requirements {
        match found {
            Ok(found) => println!("ok       {name}: {found}"),
            Err(why) if *is_required => println!("missing  {name}: {why}"),
            Err(why) => println!("-        {name}: {why}"),
        }
    }
    let is_ready = requirements.iter().all(|needed| needed.found.is_ok() || !needed.is_required);
    println!();
    println!(
        "{}",
        if is_ready { "--device cuda can be used" } else { "--device cuda cannot be used; --device cpu can" }
    );
    Ok(())
}
