//! The life of a shard process: connect, load, then a blocking loop over steps.

use std::time::{Duration, Instant};

use millrace_kernels::Backend;
use millrace_proto::{Fault, Loading, MemoryItem, Phase, Ready, Rendezvous, from_shard, to_shard};

use crate::answer::answer;
use crate::collective::{self, Deadlines};
use crate::connection::{Connection, Router, connect, is_hang_up};
use crate::decoder::{Collective, Decoder, Weights, products};
use crate::model::{DecoderSpec, Model, Storage};
use crate::options::{Device, KeptPool, ShardOptions};
use crate::plan::{self, Plan, PlanError, Wish};
use crate::platform::{OnHost, Opened, Platform, cuda, processor};
use crate::split::Split;
use crate::worker::Worker;
use crate::{Bytes, Error, lifeline, null};

/// How long a rank waits for others that load more slowly. What happens to them meanwhile is the router's to see.
const LONGEST_LOAD: Duration = Duration::from_secs(24 * 3600);

/// Time between two looks at the free memory.
const LOOK_AT_MEMORY_EVERY: Duration = Duration::from_millis(200);

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
    let connection = connect(options)?;
    match options.device {
        Device::Null(pace) => report_to(&*connection, |router| null::serve(router, options, pace, open)),
        Device::Cpu => serve(&OnHost(|| processor(options)), &*connection, options, open),
        Device::Cuda => serve(&cuda::cards(options), &*connection, options, open),
        #[cfg(feature = "cpu-sim")]
        Device::CudaSim => serve(&cuda::simulated(options), &*connection, options, open),
    }
}

/// Runs a shard on a device of `platform` over a connection.
///
/// # Errors
/// As [`run`].
pub fn serve<P: Platform>(
    platform: &P,
    connection: &(impl Connection + ?Sized),
    options: &ShardOptions,
    open: impl FnOnce() -> Result<Model, Error>,
) -> Result<(), Error> {
    report_to(connection, |router| {
        let mut worker = start(platform, router, options, open)?;
        answer(router, options.rank, &mut worker)
    })
}

/// Tells the router of an error, unless it is that the router has gone: then all is well.
fn report_to(
    connection: &(impl Connection + ?Sized),
    serve: impl FnOnce(&Router) -> Result<(), Error>,
) -> Result<(), Error> {
    let router = Router::new(connection)?;
    match serve(&router) {
        Err(error) if is_hang_up(&error) => Ok(()),
        Err(error) => {
            let fault = Fault { message: error.to_string(), lasting: error.is_lasting() };
            // If the router is gone too, the error is still returned.
            let _ = router.send(from_shard::Message::Fault(fault));
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Loads the model, meets the other ranks, computes one step to warm up, and reports ready.
fn start<P: Platform>(
    platform: &P,
    router: &Router,
    options: &ShardOptions,
    open: impl FnOnce() -> Result<Model, Error>,
) -> Result<Worker<P::Backend>, Error> {
    let mut ledger = Ledger::new();
    router.send(loading("reading the checkpoint", 0, 0))?;
    let split = Split { rank: options.rank, world_size: options.world_size };
    let model = open()?;
    let parameters = model.spec.parameters();
    let Model { spec, dtype, weights: source } = model.share(split)?;
    let dtype = options.dtype.unwrap_or(dtype);
    ledger.end("read the checkpoint's headers");
    let Opened { backend, free } = platform.open(dtype)?;
    let free = free.map(|bytes| (bytes as f64 * options.memory_fraction) as usize);
    ledger.end("open the device");

    let storage = Storage { dtype, quantize: options.quantize };
    let wish = Wish {
        weights: storage,
        kv_dtype: options.kv_cache_dtype.unwrap_or(dtype),
        max_total_tokens: options.max_total_tokens,
        max_batch_total_tokens: options.max_batch_total_tokens,
        max_step_tokens: options.max_step_tokens,
        max_sequences: options.max_sequences,
        ranks: options.world_size,
        block_size: options.block_size,
        free,
        fraction: P::MEMORY_FRACTION,
    };
    let plan = plan_memory(platform, &backend, router, options, &spec, &wish)?;
    let limits = plan.limits;
    for warning in backend.tune(&products(&spec, storage, &limits))? {
        tracing::warn!("{warning}");
    }
    ledger.end("choose algorithms");
    backend.reserve(plan.footprint.on_device(), plan::allocations(&spec))?;

    let mut last = Instant::now();
    let total = plan.footprint.weights;
    let mut progress = |done: usize| {
        if last.elapsed() >= REPORT_EVERY || done == total {
            last = Instant::now();
            router.send(loading("loading weights", done, total))?;
        }
        Ok(())
    };
    let weights =
        Weights::load(&backend, &spec, &*source, storage, limits.max_sequence_tokens, &mut progress)?;
    source.verify()?;
    ledger.end("load weights");

    let mut ready = Ready {
        dtype: dtype.name().into(),
        quantize: options.quantize.map_or_else(String::new, |quantize| quantize.name().into()),
        device: backend.name(),
        bytes_read: weights.bytes_read() as u64,
        parameters: parameters as u64,
        world_size: options.world_size as u32,
        checkpoint: source.identity(),
        ..describe(&spec, &plan)
    };
    let ranks = meet(platform, &backend, router, options)?;
    if let Some(ranks) = &ranks {
        ready.exchange = ranks.describe();
        ledger.end("wait for the other ranks");
    }
    let decoder = Decoder::new(&backend, spec, weights, &limits, ranks)?;
    let mut worker = Worker::new(backend, decoder, limits);
    ledger.end("allocate");
    let since = Instant::now();
    ready.warm_up_tokens = worker.warm_up()? as u32;
    ready.warm_up_micros = since.elapsed().as_micros() as u64;
    let beyond = worker.backend().seal();
    if beyond > 0 {
        tracing::warn!("{} of the device's memory are in use beyond the memory plan", Bytes(beyond));
    }
    ledger.end("warm up");
    if worker.record(options.graph_sizes.as_deref())? {
        ledger.end("record decode steps");
    }

    ready.phases = ledger.phases;
    router.send(from_shard::Message::Ready(ready))?;
    Ok(worker)
}

/// Decides what is allocated. After a loss the pool gets the size that it had, so that every request that was running can
/// run again; the lost shard's memory is waited for if need be. A smaller pool is better than none.
fn plan_memory<P: Platform>(
    platform: &P,
    backend: &P::Backend,
    router: &Router,
    options: &ShardOptions,
    spec: &DecoderSpec,
    wish: &Wish,
) -> Result<Plan, Error> {
    let Some(KeptPool { tokens, longest, wait }) = options.kept_pool else {
        return Ok(plan::plan(spec, wish, backend)?);
    };
    let since = Instant::now();
    let mut free = wish.free;
    loop {
        let kept =
            Wish { max_total_tokens: Some(longest), max_batch_total_tokens: Some(tokens), free, ..*wish };
        match plan::plan(spec, &kept, backend) {
            Err(PlanError::NoRoom { .. }) if since.elapsed() < wait => {
                router.send(loading("waiting for the memory of the lost shard", 0, 0))?;
                std::thread::sleep(LOOK_AT_MEMORY_EVERY);
                let now = platform.free(backend, options);
                free = now.map(|bytes| (bytes as f64 * options.memory_fraction) as usize);
            }
            // The router sees that the pool has become smaller, and says so.
            Err(PlanError::NoRoom { .. }) => return Ok(plan::plan(spec, &Wish { free, ..*wish }, backend)?),
            planned => return Ok(planned?),
        }
    }
}

/// Connects this rank with the others, by what rank 0 tells them through the router.
fn meet<P: Platform>(
    platform: &P,
    backend: &P::Backend,
    router: &Router,
    options: &ShardOptions,
) -> Result<Option<Box<dyn Collective<P::Backend>>>, Error> {
    let ShardOptions { rank, world_size, wire, collective_timeout, .. } = *options;
    if world_size == 1 {
        return Ok(None);
    }
    let deadlines = Deadlines { forming: LONGEST_LOAD, call: collective_timeout };
    let group = if rank == 0 {
        let lead = collective::lead(wire, world_size, deadlines)?;
        router.send(from_shard::Message::Rendezvous(Rendezvous { address: lead.address() }))?;
        // The others may still be loading; the router watches them.
        lead.wait()?
    } else {
        let (message, _) = router.receive()?;
        let to_shard::Message::Rendezvous(Rendezvous { address }) = message else {
            return Err(Error::OutOfPlace);
        };
        collective::join(&address, rank, world_size, deadlines)?
    };
    router.abort_with_it(group.aborter());
    let ranks = platform.connect(backend, group)?;
    router.abort_with_it(ranks.aborter());
    Ok(Some(ranks))
}

fn loading(phase: &str, done: usize, total: usize) -> from_shard::Message {
    let (done_bytes, total_bytes) = (done as u64, total as u64);
    from_shard::Message::Loading(Loading { phase: phase.into(), done_bytes, total_bytes })
}

/// What is known of the model and its limits before it is loaded.
fn describe(spec: &DecoderSpec, plan: &Plan) -> Ready {
    let limits = &plan.limits;
    let item = |(name, bytes): (&str, usize)| MemoryItem { name: name.into(), bytes: bytes as u64 };
    let memory = plan.footprint.items().into_iter().map(item);
    Ready {
        model_type: spec.model_type.clone(),
        vocab_size: spec.vocab as u32,
        hidden_size: spec.hidden as u32,
        rotation: spec.ropes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        max_sequence_tokens: limits.max_sequence_tokens as u32,
        block_size: limits.block_size as u32,
        num_blocks: limits.num_blocks as u32,
        kv_cache_dtype: limits.kv_dtype.name().into(),
        free_bytes: plan.free.unwrap_or_default() as u64,
        max_sequences: limits.max_sequences as u32,
        max_step_tokens: limits.max_step_tokens as u32,
        memory: memory.collect(),
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
