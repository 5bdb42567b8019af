//! `millrace inspect`: what is in a checkpoint and the memory it needs.

use anyhow::Result;
use millrace_shard::inspect::Inspection;

use crate::cli::InspectArgs;
use crate::model;

/// Prints the report.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let kv_dtype = args.model.kv_cache_dtype.map(Into::into);
    let mut report = Inspection::new(&model::source(&args.model)?, kv_dtype)?;
    if !args.tensors {
        report.tensors.clear();
    }
    if !args.contexts.is_empty() {
        report.contexts.clone_from(&args.contexts);
    }
    print!("{report}");
    Ok(())
}
