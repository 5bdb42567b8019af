//! `millrace convert`: writes a model in another file format.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget};
use millrace_convert::convert::convert;
use millrace_model::Bytes;

use super::quantize::source;
use crate::cli::ConvertArgs;
use crate::model::WantedModel;
use crate::progress;

/// Converts a model, and prints what was written.
pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    let target = args.target()?;
    let wanted = WantedModel {
        name: &args.input,
        revision: &args.revision,
        hub_cache: args.huggingface_hub_cache.as_ref(),
        needs_weights: true,
    };
    let source = source(wanted).with_context(|| args.input.clone())?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(progress::measured());
    bar.set_message("converting");
    let mut advance = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let report = convert(&source, &args.output, target, &mut advance);
    bar.finish_and_clear();
    let report = report?;
    println!("{}: {} tensors, {}", args.output.display(), report.tensors, Bytes(report.bytes));
    for note in report.notes {
        println!("Note: {note}.");
    }
    Ok(())
}
