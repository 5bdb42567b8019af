//! The memory plan of a model whose layers are split between a device and the host.
//!
//! The device has the embedding, the head and as many of the last layers as fit the bytes that the
//! operator allows; the host has the layers before them. Each side has the KV cache of its own
//! layers, for the same blocks.

use std::ops::Range;

use millrace_backend::Sizing;

use super::{
    Footprint, MemoryPlan, PlanError, PlanRequest, PlanSearch, PoolBound, bytes_of, check_sizes, footprint,
    kv_bytes, largest, rope_bytes, state_bytes, unscaled_norm_bytes,
};
use crate::ShardLimits;
use crate::description::{DecoderSpec, WeightStorage};
use crate::step_sizes::{activation_elements, attention, layer_products, routing_bytes, step_size};

/// The bytes that a shard may take of its device, and the memory of the host.
#[derive(Debug)]
pub struct HostRequest<'a, H> {
    /// Bytes that the shard may take of its device.
    pub device_bytes: usize,
    /// The formats of the weights on the host.
    pub weights: WeightStorage,
    /// Free memory of the host in bytes, if known.
    pub free: Option<usize>,
    /// The share of the host's free memory that everything there may fill.
    pub fraction: f64,
    /// A further bound on the host's part of a KV pool that has no given size.
    pub pool_bound: Option<PoolBound>,
    /// The sizes of the host.
    pub host: &'a H,
}

/// The layers that the host computes, and the memory that they take there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPlan {
    /// Number of layers, from the first one on.
    pub layers: usize,
    /// The memory on the host.
    pub footprint: Footprint,
}

impl HostPlan {
    /// Returns a name for people of both devices, with their shares of the layers of `spec`.
    pub fn names(&self, device: &str, host: &str, spec: &DecoderSpec) -> String {
        let all = spec.layers.len();
        format!("{device} with {} of {all} layers, and {host} with {}", all - self.layers, self.layers)
    }
}

/// Decides how many of a model's last layers the device computes, the length of sequences, and the
/// number of blocks in the KV pools of both sides.
///
/// The device gets as many layers as fit beside the KV cache of the pool that was asked for, or
/// else of one sequence of the greatest length. A pool without a given size then grows until one of
/// the sides is full.
///
/// # Errors
/// If the device cannot hold one layer, or the host the other ones.
pub fn plan_split<H: Sizing>(
    spec: &DecoderSpec,
    request: &PlanRequest,
    device: &impl Sizing,
    on_host: &HostRequest<'_, H>,
) -> Result<MemoryPlan, PlanError> {
    check_sizes(spec, request)?;
    let of_free =
        |free: Option<usize>, share: f64| free.map_or(usize::MAX, |free| (free as f64 * share) as usize);
    let search = SplitSearch {
        planner: PlanSearch { spec, request, device },
        host_request: on_host,
        budget: of_free(request.free, request.fraction).min(on_host.device_bytes),
        host_budget: of_free(on_host.free, on_host.fraction),
    };
    let (limits, layers) = match request.max_batch_total_tokens {
        Some(tokens) => {
            let limits = search.planner.given_pool(tokens)?;
            (limits, search.host_layers(&limits)?)
        }
        None => search.largest_pool()?,
    };
    let host = (layers > 0).then(|| HostPlan { layers, footprint: search.on_host(&limits, layers) });
    Ok(MemoryPlan { limits, footprint: search.on_device(&limits, layers), free: request.free, host })
}

/// The search for the fewest layers on the host.
struct SplitSearch<'a, D, H> {
    planner: PlanSearch<'a, D>,
    host_request: &'a HostRequest<'a, H>,
    /// Bytes of the device that may be used.
    budget: usize,
    /// Bytes of the host that may be used.
    host_budget: usize,
}

impl<D: Sizing, H: Sizing> SplitSearch<'_, D, H> {
    /// Returns the limits with the largest pool, and the number of layers on the host.
    fn largest_pool(&self) -> Result<(ShardLimits, usize), PlanError> {
        let planner = &self.planner;
        let mut longest = planner.longest();
        if self.host_layers(&planner.one_sequence(longest)).is_err() {
            let shortest = planner.shortest();
            self.host_layers(&planner.one_sequence(shortest))?;
            let fits = |longest: usize| self.host_layers(&planner.one_sequence(longest)).is_ok();
            longest = largest(shortest, longest, fits);
        }
        let layers = self.host_layers(&planner.one_sequence(longest))?;
        let bound = match (self.host_request.pool_bound, self.host_request.free) {
            (Some(bound), Some(free)) => bound.of_rank(free, 1),
            _ => usize::MAX,
        };
        let holds = |blocks: usize| {
            let limits = planner.limits(longest, blocks);
            let host = self.on_host(&limits, layers);
            self.on_device(&limits, layers).total() <= self.budget
                && host.total() <= self.host_budget
                && host.kv_pool <= bound
        };
        let fewest = longest.div_ceil(planner.request.block_size);
        let blocks = largest(fewest, planner.useful_blocks(longest) + 1, holds);
        Ok((planner.limits(longest, blocks), layers))
    }

    /// Returns the fewest layers that must be on the host with these limits.
    ///
    /// # Errors
    /// If the device cannot hold one layer, or the host the other ones.
    fn host_layers(&self, limits: &ShardLimits) -> Result<usize, PlanError> {
        let count = self.planner.spec.layers.len();
        let fits = |held: usize| self.on_device(limits, count - held).total() <= self.budget;
        let kv_for = format!("{} tokens", limits.num_blocks.saturating_mul(limits.block_size));
        if !fits(1) {
            let Footprint { weights, kv_pool: kv, .. } = self.on_device(limits, count - 1);
            let workspace = self.on_device(limits, count - 1).workspace();
            return Err(PlanError::NoLayer { weights, workspace, budget: self.budget, kv, kv_for });
        }
        let layers = count - largest(1, count + 1, fits);
        if let Some(part) = self.planner.spec.indivisible_layers().filter(|_| layers > 0) {
            return Err(PlanError::IndivisibleLayers(part));
        }
        let host = self.on_host(limits, layers);
        if host.total() > self.host_budget {
            let (weights, workspace, budget) = (host.weights, host.workspace(), self.host_budget);
            return Err(PlanError::NoHostRoom {
                layers,
                weights,
                workspace,
                budget,
                kv: host.kv_pool,
                kv_for,
            });
        }
        Ok(layers)
    }

    /// Returns the memory of the device without the first `host_layers` layers.
    fn on_device(&self, limits: &ShardLimits, host_layers: usize) -> Footprint {
        let PlanSearch { spec, request, device } = self.planner;
        let layers = host_layers..spec.layers.len();
        let weights = request.weights.of_layers(&layers);
        footprint(&with_layers(spec, layers), weights, limits, request.ranks, device)
    }

    /// Returns the memory of the host with the first `count` layers.
    fn on_host(&self, limits: &ShardLimits, count: usize) -> Footprint {
        if count == 0 {
            return Footprint::default();
        }
        let HostRequest { weights, host, .. } = self.host_request;
        let (part, storage) = (with_layers(self.planner.spec, 0..count), weights.of_layers(&(0..count)));
        let in_layers = part.slots().into_iter().filter(|slot| slot.layer().is_some());
        let tokens = limits.max_step_tokens;
        // The states on their way from and to the device, in its type.
        let transfer = tokens.saturating_mul(part.hidden).saturating_mul(size_of::<f32>());
        let scratch = host.scratch_bytes(&layer_products(&part, &storage, limits));
        // The device has the states of outputs.
        let activations =
            activation_elements(&part, &ShardLimits { max_sequences: 0, max_drafts: 0, ..*limits });
        Footprint {
            weights: bytes_of(in_layers, &part, &storage, *host) + unscaled_norm_bytes(&part),
            activations: [routing_bytes(&part, tokens, *host), scratch, transfer]
                .into_iter()
                .fold(host.activation_bytes(activations), usize::saturating_add),
            step: host.step_bytes(&step_size(&part, limits, &attention(&part.layers))),
            rope_tables: rope_bytes(&part, limits),
            states: state_bytes(&part, limits.max_sequences, limits.state_checkpoints, *host),
            kv_pool: kv_bytes(&part, limits.kv_format, limits.num_blocks, limits.block_size, *host),
            ..Footprint::default()
        }
    }
}

/// Returns the model with these layers only, numbered from 0.
pub fn with_layers(spec: &DecoderSpec, layers: Range<usize>) -> DecoderSpec {
    DecoderSpec { layers: spec.layers[layers].to_vec(), ..spec.clone() }
}

#[cfg(test)]
mod tests {
    use millrace_numbers::DType;

    use super::*;
    use crate::AdapterLimits;
    use crate::description::test_spec::spec;
    use crate::memory_plan::{UnpaddedDevice, plan, weight_bytes};

    /// Returns a model of this many equal layers.
    fn layered(count: usize) -> DecoderSpec {
        let mut spec = spec();
        spec.layers.resize(count, spec.layers[0].clone());
        spec
    }

    fn request() -> PlanRequest {
        PlanRequest {
            weights: DType::F16.into(),
            kv_format: DType::F16.into(),
            max_total_tokens: None,
            max_batch_total_tokens: Some(320),
            max_step_tokens: 8,
            max_sequences: 4,
            ranks: 1,
            block_size: 16,
            free: None,
            fraction: 1.0,
            pool_bound: None,
            state_checkpoints: None,
            max_drafts: 0,
            draft_model: None,
            adapters: AdapterLimits::NONE,
        }
    }

    fn on_host(device_bytes: usize, free: Option<usize>) -> HostRequest<'static, UnpaddedDevice> {
        let weights = DType::F16.into();
        HostRequest { device_bytes, weights, free, fraction: 0.5, pool_bound: None, host: &UnpaddedDevice }
    }

    fn split(
        spec: &DecoderSpec,
        request: &PlanRequest,
        device_bytes: usize,
    ) -> Result<MemoryPlan, PlanError> {
        plan_split(spec, request, &UnpaddedDevice, &on_host(device_bytes, None))
    }

    #[test]
    fn as_many_layers_as_fit_are_on_the_device() {
        let spec = layered(6);
        let whole = plan(&spec, &request(), &UnpaddedDevice).unwrap();
        let of_layer = weight_bytes(&layered(2), &DType::F16.into(), &UnpaddedDevice)
            - weight_bytes(&layered(1), &DType::F16.into(), &UnpaddedDevice);
        // Keys and values of two heads of four features, in two bytes each.
        let kv = 320 * 2 * 2 * 4 * 2;
        let total = whole.footprint.total();
        assert_eq!(split(&spec, &request(), total), Ok(whole.clone()));
        for on_host in 1..6 {
            let fits = total - on_host * (of_layer + kv);
            for (bytes, want) in [(fits, on_host), (fits + 1, on_host), (fits + of_layer + kv - 1, on_host)] {
                let found = split(&spec, &request(), bytes).unwrap();
                let host = found.host.unwrap();
                assert_eq!((host.layers, found.limits), (want, whole.limits), "{bytes} bytes");
                assert_eq!(found.footprint.total(), fits);
                let (of_host, of_device) = (host.footprint, found.footprint);
                assert_eq!(of_host.weights, on_host * of_layer);
                assert_eq!(of_host.weights + of_device.weights, whole.footprint.weights);
                assert_eq!(of_host.kv_pool, on_host * kv);
                assert_eq!(of_host.kv_pool + of_device.kv_pool, whole.footprint.kv_pool);
                assert_eq!((of_host.logits, of_host.slot_table), (0, 0));
            }
        }
        let one_layer = total - 5 * (of_layer + kv);
        let error = split(&spec, &request(), one_layer - 1).unwrap_err();
        assert!(error.is_lack_of_memory() && error.to_string().contains("for 320 tokens"), "{error}");
        assert!(matches!(error, PlanError::NoLayer { budget, .. } if budget == one_layer - 1));
    }

    #[test]
    fn layers_that_read_the_cache_of_others_stay_together() {
        let mut spec = layered(4);
        spec.layers[3].attention.heads_mut().unwrap().kv_source = Some(2);
        let whole = plan(&spec, &request(), &UnpaddedDevice).unwrap();
        let total = whole.footprint.total();
        assert_eq!(split(&spec, &request(), total), Ok(whole));
        let error = split(&spec, &request(), total - 1).unwrap_err();
        assert!(
            error.is_lack_of_memory() && error.to_string().contains("read the KV cache of others"),
            "{error}"
        );
    }

    #[test]
    fn a_pool_without_a_size_holds_what_both_sides_hold() {
        let spec = layered(4);
        let request = PlanRequest { max_total_tokens: Some(160), max_batch_total_tokens: None, ..request() };
        // Two layers and one sequence of the greatest length fit with 20 blocks to spare.
        let of = |blocks: usize| {
            let given = PlanRequest { max_batch_total_tokens: Some(16 * blocks), ..request.clone() };
            split(&spec, &given, usize::MAX).unwrap()
        };
        assert_eq!(of(10).host, None);
        let block = 16 * 2 * 2 * 4 * 2;
        let of_layer = weight_bytes(&layered(2), &DType::F16.into(), &UnpaddedDevice)
            - weight_bytes(&layered(1), &DType::F16.into(), &UnpaddedDevice);
        let two_layers = of(10).footprint.total() - 2 * (of_layer + 10 * block);
        let found = split(&spec, &request, two_layers + 3 * 2 * block + 1).unwrap();
        assert_eq!((found.host.unwrap().layers, found.limits.num_blocks), (2, 13));
        assert_eq!(found.limits.max_sequence_tokens, 160);
        // The host is the narrower side, first by its memory and then by the bound on its pool.
        let narrow = |blocks: usize, pool_bound| {
            let needs = found.host.unwrap().footprint.total() - (13 - blocks) * 2 * block;
            let host = HostRequest { pool_bound, ..on_host(two_layers + 6 * block, Some(2 * needs)) };
            plan_split(&spec, &request, &UnpaddedDevice, &host).unwrap().limits.num_blocks
        };
        assert_eq!(narrow(12, None), 12);
        let bound = PoolBound { fraction: 1.0, bytes: 11 * 2 * block };
        assert_eq!(narrow(12, Some(bound)), 11);
        // Less than one sequence of the greatest length is an error if that length was asked for,
        // and otherwise makes it shorter.
        let host = on_host(two_layers, Some(1000));
        let error = plan_split(&spec, &request, &UnpaddedDevice, &host).unwrap_err();
        assert!(matches!(error, PlanError::NoHostRoom { layers: 2, budget: 500, .. }), "{error}");
        let shorter = PlanRequest { max_total_tokens: None, ..request.clone() };
        let needs = found.host.unwrap().footprint.total();
        let host = on_host(two_layers, Some(2 * needs));
        let found = plan_split(&spec, &shorter, &UnpaddedDevice, &host).unwrap();
        assert!((16..1000).contains(&found.limits.max_sequence_tokens), "{:?}", found.limits);
        assert!(found.host.unwrap().footprint.total() <= needs);
    }

    #[test]
    fn the_free_memory_of_the_device_bounds_the_split_as_well() {
        let spec = layered(4);
        let of_free = |free: usize| {
            let request = PlanRequest { free: Some(free), fraction: 0.5, ..request() };
            split(&spec, &request, usize::MAX).unwrap().host.map(|host| host.layers)
        };
        let total = split(&spec, &request(), usize::MAX).unwrap().footprint.total();
        assert_eq!((of_free(2 * total), of_free(2 * total - 2)), (None, Some(1)));
        assert!(matches!(
            split(&spec, &PlanRequest { block_size: 0, ..request() }, usize::MAX),
            Err(PlanError::Zero("the block size"))
        ));
    }

    #[test]
    fn each_side_has_its_own_formats() {
        let spec = layered(3);
        let quantized = WeightStorage::new(DType::F16, Some(crate::description::Quantize::Fp8));
        let request = PlanRequest { weights: quantized, ..request() };
        let whole = split(&spec, &request, usize::MAX).unwrap();
        let part = split(&spec, &request, whole.footprint.total() - 1).unwrap();
        let host = part.host.unwrap();
        // The host keeps F16, in which a layer takes more bytes.
        assert_eq!(host.layers, 1);
        assert!(host.footprint.weights > whole.footprint.weights - part.footprint.weights);
    }
}
