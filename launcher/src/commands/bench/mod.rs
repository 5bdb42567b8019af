//! `millrace bench`: prefill and decode speed of a model on this machine, without a server.

mod expectation;
mod figures;
mod progress;
mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use millrace_model::adapters::Adapter;
use millrace_model::estimate::ShardEstimate;
use millrace_model::memory_plan::{PlanError, UnpaddedDevice};
use millrace_model::{Bytes, Model, QuantizeRequest, WeightStorage, families};
use millrace_shard::offline::{BenchWorkload, OfflineEngine};
use millrace_shard::{AdapterOptions, Error, NullOptions, OpenAdapter, OpenedModel, ShardOptions};

use crate::adapters::ServedAdapters;
use crate::cli::{ActivationsArg, BenchArgs, DeviceArg, LoadFormat};
use crate::shard_message::BLOCK_SIZE;
use crate::{logging, model};
use expectation::{Expectation, FirstRun};
use figures::{BatchFigures, StepCosts};
use progress::BenchProgress;
use report::{BenchReport, BenchSetup};

/// Measures all batch sizes in turns and prints the report.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    logging::start("warn", false);
    ensure!(
        args.device != DeviceArg::Auto,
        "--device auto: name the device that is measured, --device cpu or --device cuda"
    );
    let adapter = ServedAdapters::find_one(&args.adapter, &args.model, args.device)?;
    let measured_model = match adapter.infos.first() {
        Some(info) => format!("{} with adapter {}", args.model.model_id, info.name),
        None => args.model.model_id.clone(),
    };
    let since = Instant::now();
    let (model, open_adapter) = open(args)?;
    let dtype = args.model.dtype().unwrap_or(model.dtype);
    let quantize = QuantizeRequest {
        dense_head: args.model.dense_head || args.device != DeviceArg::Cpu && !keeps_stored_head(&model),
        ..args.model.quantize_request()
    };
    let storage = WeightStorage::choose(dtype, quantize, &model, &UnpaddedDevice)?;
    let kv_format = args.model.kv_format().unwrap_or(dtype.into());
    let estimate = ShardEstimate::new(&model.spec, 1, storage, kv_format)?;
    let opened = OpenedModel { model, open_adapter: Some(open_adapter), draft_model: None };
    let mut engine = OfflineEngine::load(&options(args, adapter.options), Box::new(|| Ok(opened)))
        .map_err(|error| explained(error, args))?;
    let load_time = since.elapsed();

    let mut progress = BenchProgress::start();
    let first = measure_first(&mut engine, args)?;
    let expected = Expectation::new(first, &estimate, args.prompt, &workloads(args));
    progress.expect(expected);
    // The first whole prompt touches memory that nothing has touched yet, and is not counted.
    let warm_up = BenchWorkload { batch: 1, prompt: args.prompt, generate: 1 };
    progress.begin("warm-up".to_owned(), 1);
    engine.run_with(&warm_up, &mut |step| progress.add(step))?;
    let costs = |batch: usize| StepCosts::new(&estimate, batch, args.prompt, args.generate);
    let mut measured: Vec<_> = args.batch.iter().map(|&batch| BatchFigures::new(costs(batch))).collect();
    let mut one_prompt = Vec::new();
    // Batch sizes are measured in turns, because the speed of a shared machine varies.
    for run in 1..=args.repeat {
        for figures in &mut measured {
            let limits = engine.measure_limits();
            let workload = figures.workload();
            progress.begin(format!("run {run} of {}, batch {}", args.repeat, workload.batch), workload.batch);
            let times = engine.run_with(&workload, &mut |step| progress.add(step))?;
            figures.add(&times, limits);
        }
        if !args.batch.contains(&1) {
            progress.begin(format!("run {run} of {}, one prompt", args.repeat), 1);
            let alone = BenchWorkload { batch: 1, prompt: args.prompt, generate: 0 };
            let times = engine.run_with(&alone, &mut |step| progress.add(step))?;
            one_prompt.push(args.prompt as f64 / times.prefill.as_secs_f64());
        }
    }
    progress.finish();
    let setup = BenchSetup {
        model: measured_model,
        prompt: args.prompt,
        generate: args.generate,
        repeat: args.repeat,
        threads: engine.threads(),
        load_time,
    };
    let report = BenchReport::new(setup, engine.ready(), &measured, one_prompt);
    if args.json {
        print!("{}", report.json_lines()?)
    } else {
        print!("{report}")
    }
    Ok(())
}

/// Computes a short prompt, from which the time of longer ones is estimated. It is computed twice,
/// because the first time reads the weights from the disk.
fn measure_first(engine: &mut OfflineEngine, args: &BenchArgs) -> Result<FirstRun> {
    let tokens = args.prompt.min((step_tokens(args) / 4).max(1));
    let workload = BenchWorkload { batch: 1, prompt: tokens, generate: 1 };
    engine.run(&workload)?;
    let times = engine.run(&workload)?;
    Ok(FirstRun { tokens, prefill: times.prefill, decode: times.decode.iter().sum() })
}

/// Returns all runs after the first short one.
fn workloads(args: &BenchArgs) -> Vec<BenchWorkload> {
    let BenchArgs { prompt, generate, .. } = *args;
    let mut all = vec![BenchWorkload { batch: 1, prompt, generate: 1 }];
    for _ in 0..args.repeat {
        all.extend(args.batch.iter().map(|&batch| BenchWorkload { batch, prompt, generate }));
        if !args.batch.contains(&1) {
            all.push(BenchWorkload { batch: 1, prompt, generate: 0 });
        }
    }
    all
}

/// Finds the model and what opens its adapters, and checks that the model supports sequences of the
/// requested length.
fn open(args: &BenchArgs) -> Result<(Model, OpenAdapter)> {
    let source = model::source(&args.model)?;
    let overrides = args.model.overrides();
    let model = match args.model.load_format {
        LoadFormat::Dummy => families::load_dummy(&source, &overrides)?,
        LoadFormat::Auto => families::load(&source, &overrides)?,
    };
    let (tokens, longest) = (args.prompt + args.generate, model.spec.max_positions);
    if tokens > longest {
        bail!(
            "--prompt {} and --generate {} make sequences of {tokens} tokens, but the model supports {longest}",
            args.prompt,
            args.generate
        );
    }
    let open_adapter: OpenAdapter = Arc::new(move |folder| Adapter::open(&source, &overrides, folder));
    Ok((model, open_adapter))
}

/// Returns whether a GPU keeps the head as the checkpoint stores it. It does not quantize one while
/// it is loaded, and looks up rows of one that is the embedding.
fn keeps_stored_head(model: &Model) -> bool {
    model.quantized.is_some() && !model.spec.tied_head
}

/// Returns the options of a shard with memory for the largest batch.
fn options(args: &BenchArgs, adapters: AdapterOptions) -> ShardOptions {
    let batch = largest_batch(args);
    let tokens = args.prompt + args.generate;
    let prefill = step_tokens(args);
    ShardOptions {
        device: args.device.kind(NullOptions::default),
        // There is no other rank to wait for.
        collective_timeout: Duration::from_secs(1),
        dtype: args.model.dtype(),
        quantize: args.model.quantize,
        dense_head: args.model.dense_head,
        exact_activations: args.model.activations == ActivationsArg::Exact,
        weight_cache: args.model.weight_cache(),
        kv_cache_dtype: args.model.kv_format(),
        max_total_tokens: Some(tokens),
        max_batch_total_tokens: Some(batch * tokens.next_multiple_of(BLOCK_SIZE)),
        max_step_tokens: prefill.max(batch),
        max_sequences: batch,
        block_size: BLOCK_SIZE,
        adapters,
        graph_sizes: Some(args.batch.clone()),
        threads: args.threads,
        ..ShardOptions::default()
    }
}

/// Returns the most prompt tokens of a step.
fn step_tokens(args: &BenchArgs) -> usize {
    let default = if args.device == DeviceArg::Cuda { 2048 } else { 512 };
    args.max_batch_prefill_tokens.unwrap_or(default)
}

fn largest_batch(args: &BenchArgs) -> usize {
    args.batch.iter().copied().max().unwrap_or(1)
}

/// Words the lack of memory with the flags of this command.
fn explained(error: Error, args: &BenchArgs) -> anyhow::Error {
    let Error::Plan(PlanError::NoRoom { weights, workspace, budget, kv, .. }) = error else {
        return error.into();
    };
    let (batch, tokens) = (largest_batch(args), args.prompt + args.generate);
    anyhow!(
        "not enough memory for {batch} sequences of {tokens} tokens: weights {} + workspace {} + KV cache {} are more \
         than the free {}; lower --batch, --prompt or --generate, or choose a smaller --dtype or --kv-cache-dtype",
        Bytes(weights),
        Bytes(workspace),
        Bytes(kv),
        Bytes(budget)
    )
}
