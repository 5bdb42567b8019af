//! `millrace cards`: asks the driver which cards can be computed on, for the process that has started this one.

use anyhow::Result;
use millrace_shard::Card;

/// Prints their number, or in one sentence why there is none.
pub(crate) fn run() -> Result<()> {
    match Card::usable() {
        Ok(cards) => println!("{cards}"),
        Err(why) => println!("{why}"),
    }
    Ok(())
}
