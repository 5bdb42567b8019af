//! The report of `millrace bench`, as a table or as lines of JSON.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use millrace_model::Count;
use millrace_router::engine::Ready;
use serde::Serialize;

use super::figures::{BatchFigures, BatchSummary, median};

/// The part of the report that all batch sizes share.
#[derive(Debug)]
pub(super) struct BenchSetup {
    /// Name of the model on the command line.
    pub(super) model: String,
    pub(super) prompt: usize,
    pub(super) generate: usize,
    pub(super) repeat: usize,
    /// Compute threads, if the device is the CPU.
    pub(super) threads: Option<usize>,
    /// Time from the start of the command until the model was loaded.
    pub(super) load_time: Duration,
}

/// The report.
#[derive(Debug)]
pub(super) struct BenchReport {
    setup: BenchSetup,
    model_type: String,
    parameters: u64,
    device: String,
    dtype: String,
    quantize: String,
    head: String,
    kv_cache_dtype: String,
    batches: Vec<BatchSummary>,
    /// Prompt tokens per second of a single prompt.
    one_prompt: f64,
}

/// One line of `--json`. The first eight fields keep their names between versions.
#[derive(Debug, Serialize)]
struct BenchLine<'a> {
    dtype: &'a str,
    /// Null if the matrices are as `dtype` says.
    quantize: Option<&'a str>,
    head: Option<&'a str>,
    batch: usize,
    prompt: usize,
    generate: usize,
    /// Null on a device other than the CPU.
    threads: Option<usize>,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    decode_ms_per_step: f64,
    decode_gigabytes_per_second: f64,
    decode_share_of_bandwidth: Option<f64>,
    prefill_gflops: f64,
    prefill_share_of_peak: Option<f64>,
    one_prompt_prefill_tokens_per_second: f64,
    bandwidth_gigabytes_per_second: Option<f64>,
    peak_gflops: Option<f64>,
    peak_instruction: Option<&'a str>,
    kv_cache_dtype: &'a str,
    device: &'a str,
    model: &'a str,
    repeat: usize,
    load_seconds: f64,
}

impl BenchReport {
    /// Summarizes the figures. `one_prompt` has the prompt tokens per second of single prompts if
    /// no batch has only one sequence.
    pub(super) fn new(
        setup: BenchSetup,
        ready: &Ready,
        measured: &[BatchFigures],
        one_prompt: Vec<f64>,
    ) -> Self {
        let batches: Vec<_> = measured.iter().map(BatchFigures::summary).collect();
        let alone = batches.iter().find(|summary| summary.batch == 1);
        BenchReport {
            one_prompt: alone.map_or_else(|| median(one_prompt), |summary| summary.prefill_tokens_per_second),
            setup,
            model_type: ready.model_type.clone(),
            parameters: ready.parameters,
            device: ready.device.clone(),
            dtype: ready.dtype.clone(),
            quantize: ready.quantize.clone(),
            head: ready.head.clone(),
            kv_cache_dtype: ready.kv_cache_dtype.clone(),
            batches,
        }
    }

    /// Returns one JSON object per line and batch size.
    ///
    /// # Errors
    /// If a figure has no representation in JSON.
    pub(super) fn json_lines(&self) -> serde_json::Result<String> {
        let BenchSetup { model, prompt, generate, repeat, threads, load_time } = &self.setup;
        let mut lines = String::new();
        for of in &self.batches {
            let line = BenchLine {
                dtype: &self.dtype,
                quantize: Some(self.quantize.as_str()).filter(|name| !name.is_empty()),
                head: Some(self.head.as_str()).filter(|name| !name.is_empty()),
                batch: of.batch,
                prompt: *prompt,
                generate: *generate,
                threads: *threads,
                prefill_tokens_per_second: of.prefill_tokens_per_second,
                decode_tokens_per_second: of.decode_tokens_per_second,
                decode_ms_per_step: of.decode_ms_per_step,
                decode_gigabytes_per_second: of.decode_gigabytes_per_second,
                decode_share_of_bandwidth: of.limits.map(|limits| limits.decode_share_of_bandwidth),
                prefill_gflops: of.prefill_gflops,
                prefill_share_of_peak: of.limits.map(|limits| limits.prefill_share_of_peak),
                one_prompt_prefill_tokens_per_second: self.one_prompt,
                bandwidth_gigabytes_per_second: of.limits.map(|limits| limits.bandwidth_gigabytes_per_second),
                peak_gflops: of.limits.map(|limits| limits.peak_gflops),
                peak_instruction: of.limits.map(|limits| limits.instruction),
                kv_cache_dtype: &self.kv_cache_dtype,
                device: &self.device,
                model,
                repeat: *repeat,
                load_seconds: load_time.as_secs_f64(),
            };
            lines.push_str(&serde_json::to_string(&line)?);
            lines.push('\n');
        }
        Ok(lines)
    }

    fn weights(&self) -> String {
        let named = |what: &str, format: &str| match format {
            "" => String::new(),
            format => format!(", {what} as {format}"),
        };
        format!("{}{}{}", self.dtype, named("matrices of layers", &self.quantize), named("head", &self.head))
    }
}

impl Display for BenchReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let BenchSetup { model, prompt, generate, repeat, load_time, .. } = &self.setup;
        let parameters = Count(self.parameters as usize);
        let load_time = load_time.as_secs_f64();
        writeln!(f, "{model}: {}, {parameters} parameters as {}", self.model_type, self.weights())?;
        writeln!(f, "on {}, KV cache as {}, loaded in {load_time:.2} s", self.device, self.kv_cache_dtype)?;
        writeln!(
            f,
            "prompts of {prompt} tokens, {generate} decode steps; medians of {repeat} {}",
            if *repeat == 1 { "run" } else { "runs" }
        )?;
        let limits = || self.batches.iter().filter_map(|of| of.limits);
        if let Some(first) = limits().next() {
            writeln!(
                f,
                "this machine, in the same runs: {:.1} GB/s read, {:.0} GFLOP/s ({})",
                median(limits().map(|of| of.bandwidth_gigabytes_per_second).collect()),
                median(limits().map(|of| of.peak_gflops).collect()),
                first.instruction
            )?;
        }
        writeln!(f, "\n{:>8}  {:-^30}  {:-^43}", "", " prefill ", " decode ")?;
        writeln!(
            f,
            "{:>8}  {:>10} {:>10} {:>8}  {:>10} {:>10} {:>8} {:>12}",
            "batch", "tokens/s", "GFLOP/s", "of peak", "tokens/s", "ms/step", "GB/s", "of bandwidth"
        )?;
        let percent =
            |share: Option<f64>| share.map_or("–".to_owned(), |share| format!("{:.0}%", 100.0 * share));
        for of in &self.batches {
            writeln!(
                f,
                "{:>8}  {:>10.1} {:>10.1} {:>8}  {:>10.1} {:>10.3} {:>8.1} {:>12}",
                of.batch,
                of.prefill_tokens_per_second,
                of.prefill_gflops,
                percent(of.limits.map(|limits| limits.prefill_share_of_peak)),
                of.decode_tokens_per_second,
                of.decode_ms_per_step,
                of.decode_gigabytes_per_second,
                percent(of.limits.map(|limits| limits.decode_share_of_bandwidth)),
            )?;
        }
        if self.batches.iter().all(|of| of.batch != 1) {
            writeln!(f, "prefill of one prompt alone: {:.1} tokens/s", self.one_prompt)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::figures::tests::figures;
    use super::*;

    fn report(quantize: &str, with_limits: bool) -> BenchReport {
        let setup = BenchSetup {
            model: "demo".into(),
            prompt: 50,
            generate: 4,
            repeat: 2,
            threads: with_limits.then_some(2),
            load_time: Duration::from_millis(1500),
        };
        let ready = Ready {
            model_type: "llama".into(),
            parameters: 1_130_000,
            device: "cpu (avx2, 2 threads)".into(),
            dtype: "bfloat16".into(),
            quantize: quantize.into(),
            head: String::new(),
            kv_cache_dtype: "float32".into(),
            ..Ready::default()
        };
        let runs = [(50, 100), (50, 100)];
        BenchReport::new(setup, &ready, &[figures(&runs, with_limits)], vec![900.0, 1100.0])
    }

    #[test]
    fn the_first_keys_of_a_line_are_those_that_scripts_rely_on() {
        let lines = report("", true).json_lines().unwrap();
        let expected = r#"{"dtype":"bfloat16","quantize":null,"head":null,"batch":2,"prompt":50,"generate":4,"threads":2,"prefill_tokens_per_second":2000.0,"decode_tokens_per_second":20.0,"#;
        assert!(lines.starts_with(expected), "{lines}");
        assert_eq!(lines.lines().count(), 1);
        let line: Value = serde_json::from_str(lines.trim()).unwrap();
        assert_eq!(line["one_prompt_prefill_tokens_per_second"], 1000.0);
        assert_eq!(line["peak_instruction"], "f32 multiply-add");
        let line: Value = serde_json::from_str(report("int8", false).json_lines().unwrap().trim()).unwrap();
        assert_eq!((&line["quantize"], &line["threads"]), (&"int8".into(), &Value::Null));
        assert_eq!(line["decode_share_of_bandwidth"], Value::Null);
    }

    #[test]
    fn the_table_has_a_line_for_each_batch_size_under_its_heading() {
        let text = report("", true).to_string();
        let expected = "\
demo: llama, 1.13 M parameters as bfloat16
on cpu (avx2, 2 threads), KV cache as float32, loaded in 1.50 s
prompts of 50 tokens, 4 decode steps; medians of 2 runs
this machine, in the same runs: 40.0 GB/s read, 160 GFLOP/s (f32 multiply-add)

          ---------- prefill -----------  ----------------- decode ------------------
   batch    tokens/s    GFLOP/s  of peak    tokens/s    ms/step     GB/s of bandwidth
       2      2000.0       80.0      50%        20.0    100.000     20.0          50%
prefill of one prompt alone: 1000.0 tokens/s
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_device_without_known_limits_has_dashes() {
        let text = report("fp8", false).to_string();
        assert!(text.contains("as bfloat16, matrices of layers as fp8\n"), "{text}");
        assert!(!text.contains("this machine") && !text.contains('%'), "{text}");
        assert!(text.contains("80.0        –        20.0"), "{text}");
    }
}
