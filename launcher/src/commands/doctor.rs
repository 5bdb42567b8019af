//! `millrace doctor`: what computing on cards needs, and what of it this machine has.

use anyhow::Result;
use millrace_shard::doctor::{Finding, examine};

/// Prints one line per thing that was looked for.
pub(crate) fn run() -> Result<()> {
    let findings = examine();
    for Finding { what, found, needed } in &findings {
        match found {
            Ok(found) => println!("ok       {what}: {found}"),
            Err(why) if *needed => println!("missing  {what}: {why}"),
            Err(why) => println!("-        {what}: {why}"),
        }
    }
    let is_ready = findings.iter().all(|finding| finding.found.is_ok() || !finding.needed);
    println!();
    println!(
        "{}",
        if is_ready { "--device cuda can be used" } else { "--device cuda cannot be used; --device cpu can" }
    );
    Ok(())
}
