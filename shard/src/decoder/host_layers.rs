//! The first layers of a model on the host, before those of the decoder's device.

use millrace_backend::{Backend, DeviceTypes, HostMemory, StepInput};
use millrace_model::step_sizes::{attention, step_size};
use millrace_model::{ShardLimits, WeightSource, WeightStorage};

use super::group::RankGroup;
use super::layer_stack::{LayerStack, StackWeights};
use super::step_context::StepContext;
use super::weight_loader::{WeightLoader, query_scale, ropes};
use super::weights::ModelPart;
use super::workspace::HiddenStates;
use crate::Error;

/// The first layers of a model, which the host computes because the device has not enough memory
/// for them.
///
/// The embedding stays on the device, which knows the tokens of all sequences, and so do the last
/// layers, the head and the sampling. A step therefore has one download of hidden states and one
/// upload. Block tables are the same on both sides: block b of the device and block b of the host
/// hold the same tokens of a sequence, each in its own layers.
pub struct HostLayers<H: HostMemory> {
    backend: H,
    queue: H::Queue,
    layers: LayerStack<H>,
    states: HiddenStates<H>,
    /// Ranks of a group do not split layers between device and host.
    group: RankGroup<H>,
    /// Hidden states in the type of the device, on their way.
    scratch: Vec<u8>,
    bytes_read: usize,
}

/// [`HostLayers::forward`] of layers on a host of any kind.
pub(super) type HostForward<B> =
    Box<dyn FnMut(&B, &StepInput<'_>, &mut <B as DeviceTypes>::Buf) -> Result<(), Error>>;

impl<H: HostMemory> HostLayers<H> {
    /// Loads the layers of `part` from `source`, in the formats that `storage` says, and allocates
    /// their KV caches and buffers. Calls `progress` after each weight with the bytes on the host
    /// so far.
    ///
    /// # Errors
    /// If the source fails, the host lacks memory, or a weight does not have the shape that the
    /// specification asks for.
    pub fn load(
        backend: H,
        part: &ModelPart<'_>,
        source: &dyn WeightSource,
        storage: impl Into<WeightStorage>,
        limits: &ShardLimits,
        progress: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let ModelPart { spec, layers } = part;
        let positions = limits.max_sequence_tokens;
        let slots = (*spec, part.slots(false));
        let mut loader = WeightLoader::new(&backend, slots, source, storage.into(), progress);
        let weights = StackWeights {
            layers: loader.layers(layers.clone())?,
            ropes: ropes(&backend, spec, positions)?,
            query_scale: query_scale(&backend, spec, positions)?,
            // The norm before the next layer is the device's.
            exit_norm: None,
        };
        let bytes_read = loader.read;
        let size = attention(&spec.layers[layers.clone()]);
        let queue = backend.queue(&step_size(spec, limits, &size))?;
        let stack = LayerStack::new(&backend, spec, layers.clone(), weights, limits)?;
        let states = HiddenStates::new(&backend, spec, limits)?;
        // No element of a device is wider than f32.
        let scratch = Vec::with_capacity(limits.max_step_tokens * spec.hidden * size_of::<f32>());
        let group = RankGroup::Alone;
        Ok(HostLayers { backend, queue, layers: stack, states, group, scratch, bytes_read })
    }

    /// Returns the backend that computes the layers.
    pub fn backend(&self) -> &H {
        &self.backend
    }

    /// Returns the bytes that were read from the source.
    pub fn bytes_read(&self) -> usize {
        self.bytes_read
    }

    /// Adds the branches of the layers to `residual`, `[tokens, hidden]`, on the device. Waits
    /// until the device has computed it.
    pub(super) fn forward<B: Backend>(
        &mut self,
        device: &B,
        input: &StepInput<'_>,
        residual: &mut B::Buf,
    ) -> Result<(), Error> {
        let HostLayers { backend, queue, layers, states, group, scratch, .. } = self;
        let n = input.tokens.len();
        // The device has the embedding and the head, and samples.
        let input = &StepInput { outputs: &[], samples: &[], ..*input };
        let open = backend.prepare(backend.begin(queue, input)?)?;
        device.download(residual, n, scratch, backend.host_mut(&mut states.residual, n))?;
        layers.copy_states(backend, input.restored_states)?;
        layers.copy_states(backend, input.kept_states)?;
        layers.forward(&StepContext { backend: &*backend, step: &open, tokens: n }, states, group)?;
        layers.copy_states(backend, input.saved_states)?;
        Ok(device.upload(n, backend.host(&states.residual, n), scratch, residual)?)
    }
}
