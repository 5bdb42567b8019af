//! `millrace inspect`: the contents of a checkpoint, the memory it needs, and estimates for several
//! devices.

use std::path::Path;

use anyhow::Result;
use millrace_formats::Source;
use millrace_model::estimate::{EstimateReport, LayerSplitEstimate, ShardEstimate, Workload};
use millrace_model::inspect::Inspection;

use crate::cli::{GPU_BATCH, GPU_PREFILL_TOKENS, InspectArgs, LoadFormat, ModelArgs, PlanArgs};
use crate::model;

/// Prints the report.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let dtype = args.model.dtype();
    let kv_format = args.model.kv_format();
    let quantize = args.model.quantize_request();
    let mut model = args.model.clone();
    let source = source(&mut model)?;
    let overrides = model.overrides();
    let plan_only = || Inspection::of_configuration(&source, dtype, quantize, kv_format, &overrides);
    let mut report = match model.load_format {
        LoadFormat::Dummy => plan_only()?,
        LoadFormat::Auto => match Inspection::new(&source, dtype, quantize, kv_format, &overrides) {
            // The cache may have the list of the files with weights, and not all of these files.
            Err(error) if is_of_hub(&args.model) => {
                let mut report = plan_only().map_err(|_| anyhow::anyhow!("{error}"))?;
                report.warnings.push(format!("the weights are left out: {error}"));
                report
            }
            report => report?,
        },
    };
    if !args.tensors {
        report.tensors.clear();
    }
    if !args.contexts.is_empty() {
        report.contexts.clone_from(&args.contexts);
    }
    let split = args.gpu_memory.map(|bytes| split(&report, bytes, args.plan.as_ref())).transpose()?;
    // The estimate comes before anything is printed, because a group size that does not fit is an
    // error.
    let plan = args.plan.as_ref().map(|args| plan(&report, args)).transpose()?;
    print!("{report}");
    if let Some(split) = split {
        print!("{split}");
    }
    if let Some(plan) = plan {
        print!("{plan}");
    }
    Ok(())
}

/// Returns whether the model is in the cache of the hub, and not in a folder or file of the user.
fn is_of_hub(model: &ModelArgs) -> bool {
    model.model_id != "demo" && !Path::new(&model.model_id).exists()
}

/// Returns the files of the model. Of a repository that is not in the cache, only the small files
/// are downloaded: they suffice for a plan, and `model` says so then.
fn source(model: &mut ModelArgs) -> Result<Source> {
    let found = model::source(model);
    if found.is_err() {
        let format = std::mem::replace(&mut model.load_format, LoadFormat::Dummy);
        let name = model.model_id.clone();
        model::fetch(model)?;
        if model.model_id != name {
            return model::source(model);
        }
        model.load_format = format;
    }
    found
}

/// Splits the layers between a GPU and the CPU: for the batch and the prompts of the flags, or for
/// those of a server without flags.
fn split(found: &Inspection, gpu_memory: usize, args: Option<&PlanArgs>) -> Result<LayerSplitEstimate> {
    let (batch, prefill_tokens, sequences) = match args {
        Some(args) => (args.batch as usize, args.prefill_tokens as usize, args.batch as usize),
        None => (GPU_BATCH as usize, GPU_PREFILL_TOKENS as usize, 1),
    };
    let load = Workload { batch, prefill_tokens, contexts: found.contexts.clone() };
    let load = (&load, sequences);
    Ok(LayerSplitEstimate::new(&found.spec, &found.storage, found.kv_format, gpu_memory, load)?)
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
