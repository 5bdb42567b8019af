//! `millrace doctor`: lists the requirements of GPU inference, and which of them this machine
//! meets.

use anyhow::Result;
use millrace_shard::{GpuRequirement, check_gpu_requirements};

/// Prints one line per requirement.
pub(crate) fn run() -> Result<()> {
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
