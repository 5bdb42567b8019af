//! `millrace inspect`: the contents of a checkpoint, the memory it needs, and estimates for several
//! devices.

use anyhow::Result;
use millrace_shard::estimate::{EstimateReport, ShardEstimate, Workload};
use millrace_shard::inspect::Inspection;

use crate::cli::{InspectArgs, PlanArgs};
use crate::model;

/// Prints the report.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let dtype = args.model.dtype.map(Into::into);
    let kv_format = args.model.kv_cache_dtype.map(Into::into);
    let quantize = args.model.quantize;
    let mut report =
        Inspection::new(&model::source(&args.model)?, dtype, quantize, kv_format, &args.model.overrides())?;
    if !args.tensors {
        report.tensors.clear();
    }
    if !args.contexts.is_empty() {
        report.contexts.clone_from(&args.contexts);
    }
    // The estimate comes before anything is printed, because a group size that does not fit is an
    // error.
    let plan = args.plan.as_ref().map(|args| plan(&report, args)).transpose()?;
    print!("{report}");
    if let Some(plan) = plan {
        print!("{plan}");
    }
    Ok(())
}

/// Compares the requested numbers of shards.
fn plan(found: &Inspection, args: &PlanArgs) -> Result<EstimateReport> {
    let share =
        |&size: &u32| ShardEstimate::new(&found.spec, size as usize, found.storage.clone(), found.kv_format);
    Ok(EstimateReport {
        shares: args.num_shard.iter().map(share).collect::<Result<_, _>>()?,
        hardware: args.hardware(found.storage.dtype),
        load: Workload {
            batch: args.batch as usize,
            prefill_tokens: args.prefill_tokens as usize,
            contexts: found.contexts.clone(),
        },
    })
}
