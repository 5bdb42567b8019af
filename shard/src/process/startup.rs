//! The start of a shard: load the model, meet the other ranks, warm up, and report ready.

use std::ops::Range;
use std::time::{Duration, Instant};

use millrace_backend::{Backend, ModelLoading, StepQueue, WeightLoading};
use millrace_cpu::Cpu;
use millrace_model::memory_plan::{self, DraftRequest, MemoryPlan, PlanError, PlanRequest};
use millrace_model::split::{LayerShare, Split};
use millrace_model::step_sizes::tuned_products;
use millrace_model::{AdapterLimits, Bytes, DecoderSpec, Model, WeightSource, WeightStorage};
use millrace_proto::{Loading, MemoryItem, Phase, PromptHandling, Ready, Rendezvous, from_shard, to_shard};

use crate::Error;
use crate::classifier::Classifier;
use crate::collective::{self, Deadlines};
use crate::decoder::{Collective, Decoder, Ends, HostLayers, ModelPart, Weights};
use crate::disk_cache::{CacheIdentity, DiskCache, INDEX_BYTES, OpenedCache};
use crate::draft_model::{DraftModel, DraftTimes, LoadedDraft, UnloadedDraft};
use crate::options::{AdapterOptions, DiskCacheOptions, PreviousPool, RankPlacement, ShardOptions};
use crate::platform::{OpenDevice, Platform};
use crate::process::adapter_loads::{AdapterLoads, AdapterReader, OpenAdapter};
use crate::process::host_share::HostShare;
use crate::process::router_link::RouterLink;
use crate::process::weight_cache::WeightLabel;
use crate::prompt_handling::{no_drafts, prompt_handling};
use crate::worker::Worker;

/// Time limit of the wait for ranks that load more slowly. The router notices if one of them fails
/// meanwhile.
const FORMING_DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// Pause between two looks at the free memory.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Shortest time between two reports on loading.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// A model as a shard opens it: before the rank's share is cut.
pub struct OpenedModel {
    /// The whole model.
    pub model: Model,
    /// Opens adapters of the model; absent if the shard loads none.
    pub open_adapter: Option<OpenAdapter>,
    /// The draft model, if there is one.
    pub draft_model: Option<Model>,
}

impl From<Model> for OpenedModel {
    fn from(model: Model) -> Self {
        OpenedModel { model, open_adapter: None, draft_model: None }
    }
}

/// Finds the model. It is no type parameter, so that the decoders are compiled once, in this crate.
pub type OpenModel<'a> = Box<dyn FnOnce() -> Result<OpenedModel, Error> + 'a>;

/// A rank that has loaded its model.
pub(crate) struct Started<B: Backend> {
    pub(crate) worker: Worker<B>,
    /// The announcement to the router.
    pub(crate) ready: Ready,
    pub(crate) adapters: AdapterLoads,
}

/// Loads the model, meets the other ranks and computes one step to warm up. Without a router,
/// nobody hears of the progress, and the rank must be the only one.
pub(crate) fn start<P: Platform>(
    platform: &P,
    router: Option<&RouterLink>,
    placement: &RankPlacement,
    options: &ShardOptions,
    open: OpenModel<'_>,
) -> Result<Started<P::Backend>, Error> {
    let mut timer = PhaseTimer::new();
    report(router, "reading the checkpoint", 0, 0)?;
    let RankPlacement { rank, world_size, .. } = *placement;
    let OpenedModel { mut model, open_adapter, draft_model } = open()?;
    // All ranks read the same files, and one line says enough.
    if rank == 0 {
        model.warnings.log(options.dtype);
    }
    let parameters = model.spec.parameters();
    let mut layers = 0..model.spec.layers.len();
    if options.pipeline {
        let share = LayerShare { rank, world_size };
        layers = share.layers(&model.spec)?;
        model.spec = share.spec(model.spec);
    } else {
        model = Split { rank, world_size }.apply(model)?;
    }
    let dtype = options.dtype.unwrap_or(model.dtype);
    timer.end("read the checkpoint's headers");
    let OpenDevice { backend, free } = platform.open(dtype)?;
    timer.end("open the device");

    let adapter_limits = adapter_limits(&options.adapters, &backend)?;
    if let Some(part) = P::missing(&model.spec) {
        return Err(Error::NoKernels { model_type: model.spec.model_type, part });
    }
    if let Some(flag) = evicted_blocks_flag(options)
        && prompt_handling(&model.spec) != PromptHandling::Shared
    {
        return Err(Error::Unsupported(format!(
            "{flag} needs a model whose state is all in the KV cache, without recurrent layers and \
             bidirectional attention; omit the flag"
        )));
    }
    let storage = WeightStorage::choose(dtype, options.quantize_request(), &model, &backend)?;
    // The shapes of all ranks are the same, and one line says enough.
    if placement.rank == 0 {
        storage.warnings(&model.spec).iter().for_each(|warning| tracing::warn!("{warning}"));
    }
    let host = HostShare::open::<P>(placement, options, &model, &storage, free)?;
    let Model { spec, weights: source, .. } = model;
    let no_drafts = no_drafts(&spec, backend.steps_ahead(), options.state_checkpoints);
    let no_drafts = no_drafts.filter(|_| options.max_drafts > 0);
    if let Some(reason) = no_drafts.filter(|_| placement.rank == 0) {
        tracing::warn!("--speculate has no effect: {reason}");
    }
    let mut request = plan_request::<P>(placement, options, storage, free);
    request.adapters = adapter_limits;
    let draft_model = draft_model.filter(|_| options.max_drafts > 0 && no_drafts.is_none());
    let draft_model = draft_model.map(|draft| {
        // A head computes in the type of the states that it reads.
        let dtype = if draft.spec.reads_states { Some(dtype) } else { options.dtype };
        UnloadedDraft::new(draft, world_size, dtype, options.quantize_request(), &backend)
    });
    let draft_model = draft_model.transpose()?;
    request.draft_model = draft_model.as_ref().map(|draft| draft.request.clone());
    if no_drafts.is_some() {
        request.max_drafts = 0;
    }
    let start = Start { platform, router, placement, options, backend: &backend, spec: &spec, layers };
    let plan = start.plan_memory(&request, host.as_ref())?;
    let limits = plan.limits;
    for warning in backend.tune(&tuned_products(&spec, &request.weights, &limits))? {
        tracing::warn!("{warning}");
    }
    timer.end("choose algorithms");
    let allocations = memory_plan::allocations(&spec)
        + draft_model.as_ref().map_or(0, |draft| memory_plan::allocations(&draft.request.spec));
    backend.reserve(plan.footprint.on_device(), allocations)?;
    let mut weights = start.load_weights(&*source, &request, &plan)?;
    let host_layers = start.load_host_layers(host, &*source, &plan)?;
    source.verify()?;
    let drafted_by = draft_model.as_ref().map(UnloadedDraft::describe).unwrap_or_default();
    let draft_model =
        draft_model.map(|draft| start.load_draft_model(draft, &plan, weights.ends())).transpose()?;
    timer.end("load weights");
    let pools = weights.reserve_adapters(&backend, &spec, adapter_limits, dtype)?;
    let split = if options.pipeline { Split::WHOLE } else { Split { rank, world_size } };
    let max_rank = adapter_limits.max_rank;
    let reader = open_adapter.map(|open| AdapterReader { open, split, pools, max_rank });
    let adapters = AdapterLoads::new(reader, &options.adapters.folders, adapter_limits);

    let mut ready = Ready {
        dtype: dtype.name().into(),
        quantize: request.weights.quantization().unwrap_or_default().into(),
        head: request.weights.head_quantization(&spec).unwrap_or_default().into(),
        activations: if options.exact_activations { "exact".into() } else { String::new() },
        device: match (&host_layers, &plan.host) {
            (Some(layers), Some(host)) => host.names(&backend.name(), &layers.backend().name(), &spec),
            _ => backend.name(),
        },
        bytes_read: (weights.bytes_read() + host_layers.as_ref().map_or(0, HostLayers::bytes_read)) as u64,
        parameters: parameters as u64,
        world_size: placement.world_size as u32,
        checkpoint: source.identity(),
        draft_model: drafted_by,
        ..describe(&spec, &plan)
    };
    let ranks = start.meet()?;
    if let Some(ranks) = &ranks {
        ready.exchange = ranks.describe();
        timer.end("wait for the other ranks");
    }
    let mut decoder = match ranks {
        Some(ranks) if options.pipeline => Decoder::in_pipeline(&backend, spec, weights, &limits, ranks)?,
        ranks => Decoder::new(&backend, spec, weights, &limits, ranks)?,
    };
    if let Some(layers) = host_layers {
        decoder = decoder.with_host_layers(layers);
    }
    let reads_files = decoder.spec().looks_up_tokens(&request.weights) && !backend.copies_embedding();
    let classifier = Classifier::load(decoder.spec(), &*source)?;
    let mut worker = Worker::new(backend, decoder, limits, reads_files.then_some(source), classifier)?;
    if let Some(bytes) = options.host_cache_bytes {
        reserve_host_cache(bytes, placement, &mut worker, &mut ready)?;
    }
    timer.end("allocate");
    let since = Instant::now();
    ready.warm_up_tokens = worker.warm_up()? as u32;
    ready.warm_up_micros = since.elapsed().as_micros() as u64;
    if let Some(loaded) = draft_model {
        let draft_model = DraftModel::new(worker.backend(), loaded)?;
        let DraftTimes { guess, read } = worker.add_draft_model(draft_model)?;
        (ready.draft_micros, ready.draft_read_nanos) = (guess.as_micros() as u64, read.as_nanos() as u64);
    }
    // The plan counts the buffers of the exchange between ranks, but reserves nothing for them.
    let unplanned = worker.backend().seal().saturating_sub(plan.footprint.overheads.collectives);
    if unplanned > 0 {
        tracing::warn!("the shard uses {} of device memory more than planned", Bytes(unplanned));
    }
    timer.end("warm up");
    if worker.record(options.graph_sizes.as_deref())? {
        timer.end("record decode steps");
    }

    if let Some(disk) = &options.disk_cache {
        open_disk_cache(disk, placement, options, &mut worker, &mut ready)?;
        timer.end("open the disk cache");
    }
    ready.phases = timer.phases;
    Ok(Started { worker, ready, adapters })
}

/// Opens the disk cache, and adds it to the announcement.
///
/// # Errors
/// If the cache cannot be opened.
fn open_disk_cache<B: Backend>(
    disk: &DiskCacheOptions,
    placement: &RankPlacement,
    options: &ShardOptions,
    worker: &mut Worker<B>,
    ready: &mut Ready,
) -> Result<(), Error> {
    let opened = worker.open_disk(|backend, decoder| {
        let spec = decoder.spec().clone();
        let identity = CacheIdentity { spec: &spec, ready, pipeline: options.pipeline };
        let OpenedCache { cache, entries } = DiskCache::open(disk, placement, &identity, backend, decoder)?;
        let bytes = cache.bytes() + cache.slots() * INDEX_BYTES;
        let slots = cache.slots();
        Ok((cache, (slots, entries, bytes)))
    })?;
    let (slots, entries, bytes) = opened;
    ready.memory.push(MemoryItem { name: "index of the disk cache".into(), bytes: bytes as u64 });
    (ready.disk_slots, ready.disk_entries) = (slots as u32, entries);
    Ok(())
}

/// Reserves host memory for evicted blocks, and adds its slots to the announcement.
///
/// # Errors
/// If the device cannot use it, or there is too little memory.
fn reserve_host_cache<B: Backend>(
    bytes: u64,
    placement: &RankPlacement,
    worker: &mut Worker<B>,
    ready: &mut Ready,
) -> Result<(), Error> {
    let (slots, reserved) = worker.open_disk(|backend, decoder| {
        let cache = DiskCache::in_host_memory(bytes, placement.world_size, backend, decoder)?;
        let sizes = (cache.slots(), cache.bytes() + cache.slots() * INDEX_BYTES);
        Ok((cache, sizes))
    })?;
    let name = "host memory for evicted blocks".to_owned();
    ready.memory.push(MemoryItem { name, bytes: reserved as u64 });
    ready.disk_slots = slots as u32;
    Ok(())
}

/// Returns the flag that asks for a cache of evicted blocks, if there is to be one.
fn evicted_blocks_flag(options: &ShardOptions) -> Option<&'static str> {
    let disk = options.disk_cache.is_some().then_some("--kv-disk");
    disk.or(options.host_cache_bytes.map(|_| "--kv-host-memory"))
}

/// Returns the sizes of the pools of adapters.
fn adapter_limits(options: &AdapterOptions, backend: &impl Backend) -> Result<AdapterLimits, Error> {
    let &AdapterOptions { places, max_loaded, max_rank, .. } = options;
    if places == 0 {
        return Ok(AdapterLimits::NONE);
    }
    if !backend.computes_adapters() {
        return Err(Error::Unsupported(format!(
            "LoRA adapters are computed on the CPU only, not on {}",
            backend.name()
        )));
    }
    Ok(AdapterLimits { count: places, max_loaded, max_rank })
}

/// The request for a memory plan that follows from the options.
fn plan_request<P: Platform>(
    placement: &RankPlacement,
    options: &ShardOptions,
    weights: WeightStorage,
    free: Option<usize>,
) -> PlanRequest {
    PlanRequest {
        kv_format: options.kv_cache_dtype.unwrap_or(weights.dtype.into()),
        weights,
        max_total_tokens: options.max_total_tokens,
        max_batch_total_tokens: options.max_batch_total_tokens,
        max_step_tokens: options.max_step_tokens,
        max_sequences: options.max_sequences,
        ranks: placement.world_size,
        block_size: options.block_size,
        free: usable(free, options),
        fraction: P::MEMORY_FRACTION,
        pool_bound: P::POOL_BOUND,
        state_checkpoints: options.state_checkpoints,
        max_drafts: options.max_drafts,
        adapters: AdapterLimits::NONE,
        draft_model: None,
    }
}

/// The part of the free memory that the shard may use.
fn usable(free: Option<usize>, options: &ShardOptions) -> Option<usize> {
    free.map(|bytes| (bytes as f64 * options.memory_fraction) as usize)
}

/// The inputs that the phases of the start share.
struct Start<'a, P: Platform> {
    platform: &'a P,
    router: Option<&'a RouterLink>,
    placement: &'a RankPlacement,
    options: &'a ShardOptions,
    backend: &'a P::Backend,
    spec: &'a DecoderSpec,
    /// The layers of this rank.
    layers: Range<usize>,
}

impl<P: Platform> Start<'_, P> {
    /// Decides how much memory is allocated.
    ///
    /// After a loss the pool gets the size that the lost shard had, so that every request that was
    /// running can run again. If need be, this waits for the memory of the lost shard. If that
    /// memory does not become free, a smaller pool is better than none.
    ///
    /// With `host`, the CPU computes the layers that do not fit. A GPU that lacks memory only
    /// because the lost shard still has it would get fewer layers than before, so this waits then,
    /// too.
    fn plan_memory(&self, request: &PlanRequest, host: Option<&HostShare>) -> Result<MemoryPlan, Error> {
        let part = memory_plan::with_layers(self.spec, self.layers.clone());
        let weights = request.weights.of_layers(&self.layers);
        let request = &PlanRequest { weights, ..request.clone() };
        let plan = |request: &PlanRequest| match host {
            None => memory_plan::plan(&part, request, self.backend),
            Some(host) => host.plan(self.spec, request, self.backend),
        };
        let Some(PreviousPool { tokens, longest_sequence, wait }) = self.placement.previous_pool else {
            return Ok(plan(request)?);
        };
        let since = Instant::now();
        let mut free = request.free;
        loop {
            let previous = PlanRequest {
                max_total_tokens: Some(longest_sequence),
                max_batch_total_tokens: Some(tokens),
                free,
                ..request.clone()
            };
            let planned = plan(&previous);
            let lacks_memory = planned.as_ref().is_err_and(PlanError::is_lack_of_memory);
            let is_waiting = lacks_memory || host.is_some_and(|host| host.lacks_memory(free));
            match planned {
                _ if is_waiting && since.elapsed() < wait => {
                    report(self.router, "waiting for the memory of the lost shard", 0, 0)?;
                    std::thread::sleep(MEMORY_POLL_INTERVAL);
                    free =
                        usable(self.platform.free(self.backend, self.placement, self.options), self.options);
                }
                // The router notices that the pool has become smaller, and logs it.
                Err(_) if lacks_memory => return Ok(plan(&PlanRequest { free, ..request.clone() })?),
                planned => return Ok(planned?),
            }
        }
    }

    /// Returns a function that reports to the router how many bytes of weights are loaded:
    /// `before`, and those that it is called with.
    fn progress(&self, plan: &MemoryPlan, before: usize) -> impl FnMut(usize) -> Result<(), Error> + '_ {
        let mut last = Instant::now();
        let total = plan.footprint.weights + plan.host.map_or(0, |host| host.footprint.weights);
        move |done: usize| {
            let done = before + done;
            if last.elapsed() >= REPORT_INTERVAL || done == total {
                last = Instant::now();
                report(self.router, "loading weights", done, total)?;
            }
            Ok(())
        }
    }

    /// Loads the weights of the device, and reports the progress to the router.
    fn load_weights(
        &self,
        source: &dyn WeightSource,
        request: &PlanRequest,
        plan: &MemoryPlan,
    ) -> Result<Weights<P::Backend>, Error> {
        let mut progress = self.progress(plan, 0);
        let positions = plan.limits.max_sequence_tokens;
        let RankPlacement { rank, world_size, .. } = *self.placement;
        let storage = request.weights.clone();
        // Layers of the host come first.
        let (start, end) = (self.layers.start, self.layers.end);
        let first = start + plan.host.map_or(0, |host| host.layers);
        let part = ModelPart { spec: self.spec, layers: first..end };
        self.with_weight_cache((self.spec, &request.weights, Split { rank, world_size }), source, || {
            Weights::load(self.backend, part, source, storage, positions, &mut progress)
        })
    }

    /// Loads the weights of the draft model, and reports the progress to the router.
    fn load_draft_model(
        &self,
        draft: UnloadedDraft,
        plan: &MemoryPlan,
        ends: Ends<P::Backend>,
    ) -> Result<LoadedDraft<P::Backend>, Error> {
        let UnloadedDraft { request, source } = draft;
        let limits = request.limits(&plan.limits);
        let DraftRequest { spec, weights: storage } = request;
        let total = memory_plan::weight_bytes(&spec, &storage, self.backend);
        let weights = self.with_weight_cache((&spec, &storage, Split::WHOLE), &*source, || {
            let mut progress = |done| report(self.router, "loading the draft model", done, total);
            let (storage, positions) = (storage.clone(), limits.max_sequence_tokens);
            Weights::load(self.backend, &spec, &*source, storage, positions, &mut progress)
        })?;
        source.verify()?;
        let weights = if spec.reads_states { weights.with_ends(ends) } else { weights };
        Ok(LoadedDraft { spec, weights, limits })
    }

    /// Calls `load`, which loads the weights of this rank's share of a model. It reads them from
    /// the cache of packed weights, if there is one and it has them.
    fn with_weight_cache<T>(
        &self,
        (spec, storage, split): (&DecoderSpec, &WeightStorage, Split),
        source: &dyn WeightSource,
        load: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.options.weight_cache.is_some()
            && let Some(label) = WeightLabel::new(spec, storage, split, source)?
        {
            self.backend.begin_weights(&label.subject, &label.version);
        }
        let loaded = load()?;
        if let Some(warning) = self.backend.end_weights() {
            tracing::warn!("{warning}");
        }
        Ok(loaded)
    }

    /// Loads the layers that the CPU computes, if there are any.
    fn load_host_layers(
        &self,
        host: Option<HostShare>,
        source: &dyn WeightSource,
        plan: &MemoryPlan,
    ) -> Result<Option<HostLayers<Cpu>>, Error> {
        let Some((share, host)) = host.zip(plan.host) else { return Ok(None) };
        let mut progress = self.progress(plan, plan.footprint.weights);
        share.load(self.spec, (plan, &host), source, &mut progress).map(Some)
    }

    /// Connects this rank with the others, at an address that rank 0 sends them through the router.
    fn meet(&self) -> Result<Option<Box<dyn Collective<P::Backend>>>, Error> {
        let RankPlacement { rank, world_size, .. } = *self.placement;
        if world_size == 1 {
            return Ok(None);
        }
        let router = self.router.ok_or(Error::OutOfPlace)?;
        let deadlines = Deadlines { forming: FORMING_DEADLINE, call: self.options.collective_timeout };
        let group = if rank == 0 {
            let leader = collective::lead(self.options.transport, world_size, deadlines)?;
            router.send(from_shard::Message::Rendezvous(Rendezvous { address: leader.address() }))?;
            // The other ranks may still be loading. The router watches them.
            leader.wait()?
        } else {
            let (message, _) = router.receive()?;
            let to_shard::Message::Rendezvous(Rendezvous { address }) = message else {
                return Err(Error::OutOfPlace);
            };
            collective::join(&address, rank, world_size, deadlines)?
        };
        router.abort_when_closed(group.aborter());
        let ranks = self.platform.connect(self.backend, group)?;
        router.abort_when_closed(ranks.aborter());
        Ok(Some(ranks))
    }
}

/// Reports the progress to the router, if there is one.
fn report(router: Option<&RouterLink>, phase: &str, done: usize, total: usize) -> Result<(), Error> {
    let Some(router) = router else { return Ok(()) };
    let (done_bytes, total_bytes) = (done as u64, total as u64);
    router.send(from_shard::Message::Loading(Loading { phase: phase.into(), done_bytes, total_bytes }))
}

/// The part of the announcement that follows from the model and the memory plan.
fn describe(spec: &DecoderSpec, plan: &MemoryPlan) -> Ready {
    let limits = &plan.limits;
    let item = |(name, bytes): (&str, usize)| MemoryItem { name: name.into(), bytes: bytes as u64 };
    let memory = plan.footprint.items().into_iter().map(item);
    let host_memory = plan.host.iter().flat_map(|host| host.footprint.items()).map(item);
    Ready {
        model_type: spec.model_type.clone(),
        vocab_size: spec.vocab as u32,
        hidden_size: spec.hidden as u32,
        headless: spec.head.is_absent,
        prompt_handling: prompt_handling(spec).into(),
        classes: spec.head.classifier.map_or(0, |plan| plan.classes) as u32,
        second_token_type: spec.embedding.has_second_type(),
        rotation: rotation(spec),
        max_positions: u32::try_from(spec.max_positions).unwrap_or(u32::MAX),
        max_sequence_tokens: limits.max_sequence_tokens as u32,
        block_size: limits.block_size as u32,
        num_blocks: limits.num_blocks as u32,
        kv_cache_dtype: limits.kv_format.name().into(),
        free_bytes: plan.free.unwrap_or_default() as u64,
        max_sequences: limits.max_sequences as u32,
        max_step_tokens: limits.max_step_tokens as u32,
        state_checkpoints: limits.state_checkpoints as u32,
        max_drafts: limits.max_drafts as u32,
        adapters: limits.adapters.count as u32,
        max_loaded_adapters: limits.adapters.max_loaded as u32,
        memory: memory.collect(),
        host_memory: host_memory.collect(),
        ..Ready::default()
    }
}

/// Describes the rotary tables and the factors on queries.
fn rotation(spec: &DecoderSpec) -> String {
    let tables = spec.ropes.iter().map(ToString::to_string);
    tables.chain(spec.query_scale.map(|scale| scale.to_string())).collect::<Vec<_>>().join("; ")
}

/// Measures how long each phase of the start takes.
struct PhaseTimer {
    since: Instant,
    phases: Vec<Phase>,
}

impl PhaseTimer {
    fn new() -> Self {
        PhaseTimer { since: Instant::now(), phases: Vec::new() }
    }

    /// Ends the current phase, whose name is `name`, and begins the next one.
    fn end(&mut self, name: &str) {
        let micros = self.since.elapsed().as_micros() as u64;
        self.phases.push(Phase { name: name.into(), micros });
        self.since = Instant::now();
    }
}
