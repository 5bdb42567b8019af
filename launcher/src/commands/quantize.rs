//! `millrace quantize`: writes a quantized checkpoint.

use std::io::Write;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget};
use millrace_convert::quantize::{MAX_FILE_BYTES, QuantizeReport, QuantizedMatrix, quantize};
use millrace_formats::Source;
use millrace_model::Bytes;
use serde_json::json;

use crate::cli::QuantizeArgs;
use crate::hub::FetchedModel;
use crate::model::{WantedModel, download_weights};
use crate::progress;

/// Matrices that the table lists.
const LISTED: usize = 10;

/// Quantizes a checkpoint, and prints the errors of its matrices.
pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
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
    bar.set_message(format!("quantizing to {}", target.name()));
    let mut advance = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let report = quantize(&source, &args.output, target, MAX_FILE_BYTES, &mut advance);
    bar.finish_and_clear();
    let report = report?;
    let text = if args.json { objects(&report) } else { table(&report, args) };
    std::io::stdout().write_all(text.as_bytes()).context("standard output")
}

/// Finds the checkpoint, or downloads it.
pub(super) fn source(wanted: WantedModel<'_>) -> Result<Source> {
    let Some(FetchedModel { folder, weights }) = wanted.fetch()? else {
        return Ok(wanted.locate()?.source());
    };
    if let Some(weights) = weights {
        download_weights(weights, false)?;
    }
    Ok(Source::Directory(folder))
}

/// Returns one JSON object per matrix and line.
fn objects(report: &QuantizeReport) -> String {
    let quantized = report.matrices.iter().map(|matrix| {
        let QuantizedMatrix { tensor, rows, cols, relative_error, bytes } = matrix;
        json!({
            "tensor": tensor, "rows": rows, "cols": cols, "relative_error": relative_error, "bytes": bytes,
        })
    });
    let dense = report.dense.iter().map(|matrix| {
        json!({
            "tensor": matrix.tensor, "rows": matrix.rows, "cols": matrix.cols, "left_dense": matrix.reason,
        })
    });
    quantized.chain(dense).map(|object| format!("{object}\n")).collect()
}

/// Returns the sizes, the matrices with the largest errors, and those that are left dense.
fn table(report: &QuantizeReport, args: &QuantizeArgs) -> String {
    let mut worst: Vec<&QuantizedMatrix> = report.matrices.iter().collect();
    worst.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    let (all, squares) = (worst.len(), worst.iter().map(|matrix| matrix.relative_error.powi(2)));
    let mean = (squares.sum::<f64>() / all.max(1) as f64).sqrt();
    let mut text = format!(
        "{}: {all} matrices as {}, {} instead of {}\n\n\
         Relative error of the weights (root mean square): {mean:.4} in all",
        args.output.display(),
        args.format.name(),
        Bytes(report.bytes_after),
        Bytes(report.bytes_before),
    );
    text += if all > LISTED { "; the largest:\n" } else { "\n" };
    let width = worst.iter().take(LISTED).map(|matrix| matrix.tensor.len()).max().unwrap_or(0);
    for QuantizedMatrix { tensor, rows, cols, relative_error, .. } in worst.into_iter().take(LISTED) {
        text += &format!("  {tensor:<width$}  {relative_error:.4}  {rows} x {cols}\n");
    }
    if let Some(first) = report.dense.first() {
        text += &format!("\n{} matrices are left dense:\n", report.dense.len());
        let width = report.dense.iter().map(|matrix| matrix.tensor.len()).max().unwrap_or(first.tensor.len());
        for matrix in report.dense.iter().take(LISTED) {
            text += &format!("  {:<width$}  {}\n", matrix.tensor, matrix.reason);
        }
        if report.dense.len() > LISTED {
            text += &format!("  and {} more\n", report.dense.len() - LISTED);
        }
    }
    text
}
