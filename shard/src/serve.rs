//! The life of a shard process: connect, load, then a blocking loop over steps.

use std::io::Write;
use std::time::{Duration, Instant};

use millrace_kernels::Backend;
use millrace_kernels::cpu::{Cpu, CpuOptions};
use millrace_proto::{
    Fault, FromShard, Loading, MemoryItem, Phase, Pong, Ready, Step, StepOutput, frame, from_shard, to_shard,
};

use crate::connection::{Connection, connect, is_hang_up, listen};
use crate::decoder::{Decoder, Weights};
use crate::memory::free_host_bytes;
use crate::model::{DecoderSpec, Model};
use crate::options::{Device, ShardOptions};
use crate::plan::{self, Plan, Wish};
use crate::worker::Worker;
use crate::{Error, lifeline, null};

/// The share of the free host memory that a KV pool without a given size may fill up to.
const HOST_MEMORY_FRACTION: f64 = 0.8;

/// Time between two reports on loading.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Runs a shard until the router tells it to stop or goes away. `open` finds the model; it is called once the router is
/// connected, so that the router learns of its errors.
///
/// # Errors
/// If the model cannot be loaded, or a step cannot be run. The router has been told then.
pub fn run(options: &ShardOptions, open: impl FnOnce() -> Result<Model, Error>) -> Result<(), Error> {
    if options.lifeline {
        lifeline::hold().map_err(Error::Lifeline)?;
    }
    let mut router = connect(&options.address)?;
    if let Device::Null(pace) = options.device {
        return report_to(&mut router, |router| null::serve(router, options, pace, open));
    }
    let cpu = CpuOptions { threads: options.threads, ..CpuOptions::default() };
    match Cpu::new(cpu) {
        Ok(cpu) => serve(&cpu, &mut router, options, free_host_bytes(), open),
        Err(error) => report_to(&mut router, |_| Err(error.into())),
    }
}

/// Runs a shard on `backend` over a connection. `free` is the device's free memory in bytes, if known.
///
/// # Errors
/// As [`run`].
pub fn serve<B: Backend>(
    backend: &B,
    router: &mut impl Connection,
    options: &ShardOptions,
    free: Option<usize>,
    open: impl FnOnce() -> Result<Model, Error>,
) -> Result<(), Error> {
    report_to(router, |router| {
        let mut worker = start(backend, router, options, free, open)?;
        answer(router, |step| worker.step(step))
    })
}

/// Tells the router of an error, unless it is that the router has gone: then all is well.
fn report_to<C: Connection>(
    router: &mut C,
    serve: impl FnOnce(&mut C) -> Result<(), Error>,
) -> Result<(), Error> {
    match serve(router) {
        Err(error) if is_hang_up(&error) => Ok(()),
        Err(error) => {
            let fault = Fault { message: error.to_string() };
            // If the router is gone too, the error is still returned.
            let _ = send(router, from_shard::Message::Fault(fault));
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Loads the model, computes one step to warm up, and reports ready.
fn start<'b, B: Backend>(
    backend: &'b B,
    router: &mut impl Write,
    options: &ShardOptions,
    free: Option<usize>,
    open: impl FnOnce() -> Result<Model, Error>,
) -> Result<Worker<'b, B>, Error> {
    if options.world_size != 1 || options.rank != 0 {
        return Err(Error::Unsupported(format!(
            "tensor parallelism is not available yet: this is rank {} of {}; use --num-shard 1",
            options.rank, options.world_size,
        )));
    }
    let mut ledger = Ledger::new();
    send(router, loading("reading the checkpoint", 0, 0))?;
    let Model { spec, dtype, weights: source } = open()?;
    let dtype = options.dtype.unwrap_or(dtype);
    ledger.end("read the checkpoint's headers");

    let wish = Wish {
        dtype,
        kv_dtype: options.kv_cache_dtype.unwrap_or(dtype),
        max_total_tokens: options.max_total_tokens,
        max_batch_total_tokens: options.max_batch_total_tokens,
        max_step_tokens: options.max_step_tokens,
        max_sequences: options.max_sequences,
        block_size: options.block_size,
        free,
        fraction: HOST_MEMORY_FRACTION,
    };
    let plan = plan::plan(&spec, &wish, backend)?;
    let limits = plan.limits;

    let mut last = Instant::now();
    let total = plan.footprint.weights;
    let mut progress = |done: usize| {
        if last.elapsed() >= REPORT_EVERY || done == total {
            last = Instant::now();
            send(router, loading("loading weights", done, total))?;
        }
        Ok(())
    };
    let weights = Weights::load(backend, &spec, &*source, dtype, limits.max_sequence_tokens, &mut progress)?;
    ledger.end("load weights");

    let mut ready = Ready { dtype: dtype.name().into(), device: backend.name(), ..describe(&spec, &plan) };
    let decoder = Decoder::new(backend, spec, weights, &limits)?;
    let mut worker = Worker::new(backend, decoder, limits);
    ledger.end("allocate");
    worker.warm_up()?;
    ledger.end("warm up");

    ready.phases = ledger.phases;
    send(router, from_shard::Message::Ready(ready))?;
    Ok(worker)
}

/// Answers steps until the router asks to stop.
pub(crate) fn answer(
    router: &mut impl Connection,
    mut compute: impl FnMut(&Step) -> Result<StepOutput, Error>,
) -> Result<(), Error> {
    let messages = listen(router)?;
    let mut answered = None;
    // The reader says why before it ends.
    while let Ok(received) = messages.recv() {
        let (message, received) = received?;
        match message.message {
            Some(to_shard::Message::Step(step)) => {
                let idle = answered.map_or(Duration::ZERO, |answered| received.duration_since(answered));
                let idle_micros = idle.as_micros() as u64;
                let output = StepOutput { idle_micros, ..compute(&step)? };
                answered = Some(Instant::now());
                send(router, from_shard::Message::Output(output))?;
            }
            Some(to_shard::Message::Ping(_)) => send(router, from_shard::Message::Pong(Pong {}))?,
            Some(to_shard::Message::Shutdown(_)) => return Ok(()),
            None => return Err(Error::EmptyMessage),
        }
    }
    Ok(())
}

pub(crate) fn send(router: &mut impl Write, message: from_shard::Message) -> Result<(), Error> {
    Ok(frame::write(router, &FromShard { message: Some(message) })?)
}

fn loading(phase: &str, done: usize, total: usize) -> from_shard::Message {
    let (done_bytes, total_bytes) = (done as u64, total as u64);
    from_shard::Message::Loading(Loading { phase: phase.into(), done_bytes, total_bytes })
}

/// What is known of the model and its limits before it is loaded.
fn describe(spec: &DecoderSpec, plan: &Plan) -> Ready {
    let limits = &plan.limits;
    let memory = plan.footprint.items();
    Ready {
        model_type: spec.model_type.clone(),
        parameters: spec.parameters() as u64,
        vocab_size: spec.vocab as u32,
        max_sequence_tokens: limits.max_sequence_tokens as u32,
        block_size: limits.block_size as u32,
        num_blocks: limits.num_blocks as u32,
        kv_cache_dtype: limits.kv_dtype.name().into(),
        free_bytes: plan.free.unwrap_or_default() as u64,
        max_sequences: limits.max_sequences as u32,
        max_step_tokens: limits.max_step_tokens as u32,
        memory: memory.map(|(name, bytes)| MemoryItem { name: name.into(), bytes: bytes as u64 }).into(),
        ..Ready::default()
    }
}

/// How long each phase of the start took.
struct Ledger {
    since: Instant,
    phases: Vec<Phase>,
}

impl Ledger {
    fn new() -> Self {
        Ledger { since: Instant::now(), phases: Vec::new() }
    }

    /// The time since the last phase ended belongs to this one.
    fn end(&mut self, name: &str) {
        let micros = self.since.elapsed().as_micros() as u64;
        self.phases.push(Phase { name: name.into(), micros });
        self.since = Instant::now();
    }
}
