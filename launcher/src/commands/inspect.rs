//! `millrace inspect`: what is in a checkpoint, the memory it needs, and what several devices would make of it.

use anyhow::Result;
use millrace_shard::inspect::Inspection;
use millrace_shard::planner::{Load, Report, Share};

use crate::cli::{InspectArgs, PlanArgs};
use crate::model;

/// Prints the report.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let dtype = args.model.dtype.map(Into::into);
    let kv_dtype = args.model.kv_cache_dtype.map(Into::into);
    let quantize = args.model.quantize.map(Into::into);
    let mut report =
        Inspection::new(&model::source(&args.model)?, dtype, quantize, kv_dtype, &args.model.overrides())?;
    if !args.tensors {
        report.tensors.clear();
    }
    if !args.contexts.is_empty() {
        report.contexts.clone_from(&args.contexts);
    }
    // Before anything is printed: a size that does not fit is an error.
    let plan = args.plan.as_ref().map(|args| plan(&report, args)).transpose()?;
    print!("{report}");
    if let Some(plan) = plan {
        print!("{plan}");
    }
    Ok(())
}

/// Compares the group sizes that were asked for.
fn plan(found: &Inspection, args: &PlanArgs) -> Result<Report> {
    let share = |&size: &u32| Share::new(&found.spec, size as usize, found.storage, found.kv_dtype);
    Ok(Report {
        shares: args.num_shard.iter().map(share).collect::<Result<_, _>>()?,
        hardware: args.hardware(found.storage.dtype),
        load: Load {
            batch: args.batch as usize,
            prefill_tokens: args.prefill_tokens as usize,
            contexts: found.contexts.clone(),
        },
    })
}
