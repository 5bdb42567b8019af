//! `millrace gpus`: counts the usable GPUs for the process that has started this one.

use anyhow::Result;
use millrace_shard::usable_gpus;

/// Prints the number of usable GPUs, or one sentence with the reason why there is none.
pub(crate) fn run() -> Result<()> {
    match usable_gpus() {
        Ok(count) => println!("{count}"),
        Err(why) => println!("{why}"),
    }
    Ok(())
}
