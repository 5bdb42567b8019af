//! The one decoder: what a [`DecoderSpec`] says, computed with the operations of a [`Backend`].

mod group;
mod weights;
mod workspace;

use std::time::Duration;

use millrace_kernels::{
    AttentionSpec, Backend, KvSpec, Norm, Prologue, SampleRow, Sampled, StepInput, StepSize,
};

use crate::model::DecoderSpec;
use crate::{Error, Limits};
use group::Group;
pub use group::{Collective, OverCards, OverHost};
pub use weights::Weights;
use workspace::Workspace;
pub(crate) use workspace::activation_elements;

/// A model ready to compute steps: weights, KV pool and every buffer a step needs.
pub struct Decoder<B: Backend> {
    spec: DecoderSpec,
    weights: Weights<B>,
    /// One paged cache per layer.
    kv: Vec<B::Kv>,
    step: B::Step,
    work: Workspace<B>,
    /// The other ranks, if there are any.
    group: Option<Group<B>>,
}

impl<B: Backend> Decoder<B> {
    /// Allocates the KV pool and the buffers; a step allocates nothing. `spec` is this rank's share; `ranks` connects it
    /// to the others, if there are any.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn new(
        backend: &B,
        spec: DecoderSpec,
        weights: Weights<B>,
        limits: &Limits,
        ranks: Option<Box<dyn Collective<B>>>,
    ) -> Result<Self, Error> {
        let kv = spec
            .layers
            .iter()
            .map(|layer| {
                backend.kv(KvSpec {
                    blocks: limits.num_blocks,
                    block_size: limits.block_size,
                    kv_heads: layer.qkv.kv_heads,
                    head_dim: layer.qkv.head_dim,
                    dtype: limits.kv_dtype,
                })
            })
            .collect::<millrace_kernels::Result<Vec<_>>>()?;
        let step = backend.step(StepSize {
            tokens: limits.max_step_tokens,
            rows: limits.max_sequences,
            table_blocks: limits.table_blocks(),
            block_size: limits.block_size,
        })?;
        let work = Workspace::new(backend, &spec, limits)?;
        let (rows, cols) = (limits.max_sequences, spec.vocab_rows.len());
        let group = ranks.map(|ranks| Group::new(ranks, backend, rows, cols)).transpose()?;
        Ok(Decoder { spec, weights, kv, step, work, group })
    }

    /// What the decoder computes.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Runs one step: stores keys and values of its `n` tokens and leaves the logits of its `m` outputs for
    /// [`Decoder::sample`].
    ///
    /// `input` holds at least one token, and keeps to the limits that the decoder was built for.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn forward(&mut self, backend: &B, input: &StepInput<'_>) -> Result<(), Error> {
        let n = input.tokens.len();
        let Decoder { spec, weights, kv, step, work, group } = self;
        let Workspace { hidden, normed, branch, qkv, heads, gate_up, gated, rows, logits } = work;

        backend.begin(step, input)?;
        backend.embed(step, &weights.embedding, spec.vocab_rows.start, hidden)?; // [n, hidden]
        reduce(group, backend, n, hidden)?;
        backend.norm(n, hidden, weights.norm_before(0), normed)?; // [n, hidden]

        for (index, layer) in spec.layers.iter().enumerate() {
            let w = &weights.layers[index];
            let qkv = qkv.of(layer.qkv.cols());
            let heads = heads.of(layer.qkv.heads * layer.qkv.head_dim);
            let (gate_up, gated) = (gate_up.of(2 * layer.mlp.width), gated.of(layer.mlp.width));

            // Attention: softmax(q kᵀ · scale) v over the sequence's cache.
            backend.linear(n, normed, &w.qkv, w.qkv_bias.as_ref(), qkv)?; // [n, (heads + 2 kv_heads) * head_dim]
            let prologue = Prologue {
                layout: layer.qkv,
                head_norm: w.head_norm.as_ref(),
                rope: layer.rope.map(|table| &weights.ropes[table]),
            };
            backend.prologue(step, qkv, &prologue, &mut kv[index])?;
            let attention =
                AttentionSpec { layout: layer.qkv, scale: layer.score_scale, window: layer.window };
            backend.attention(step, qkv, &kv[index], &attention, heads)?; // [n, heads * head_dim]
            backend.linear(n, heads, &w.out, w.out_bias.as_ref(), branch)?; // [n, hidden]
            reduce_norm(group, backend, n, hidden, branch, &w.mlp_norm, normed)?; // [n, hidden]

            // MLP: down(act(gate(x)) * up(x)).
            backend.linear(n, normed, &w.gate_up, w.gate_up_bias.as_ref(), gate_up)?; // [n, 2 * width]
            backend.gate(n, layer.mlp.act, gate_up, gated)?; // [n, width]
            backend.linear(n, gated, &w.down, w.down_bias.as_ref(), branch)?; // [n, hidden]
            reduce_norm(group, backend, n, hidden, branch, weights.norm_before(index + 1), normed)?; // [n, hidden]
        }

        // `normed` has been through the final norm.
        let m = input.outputs.len();
        if m > 0 {
            backend.gather(step, normed, rows)?; // [m, hidden]
            match group {
                None => backend.linear(m, rows, weights.head(), None, logits)?, // [m, vocab]
                Some(group) => {
                    backend.linear(m, rows, weights.head(), None, &mut group.part)?; // [m, vocab_rows]
                    group.gather(backend, m, logits)?; // [m, vocab]
                }
            }
        }
        Ok(())
    }

    /// Chooses a token for each output of the last forward, in their order; the logits are lost. Appends to `chosen`.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn sample(
        &mut self,
        backend: &B,
        rows: &[SampleRow<'_>],
        chosen: &mut Vec<Sampled>,
    ) -> Result<(), Error> {
        if self.group.as_ref().is_none_or(Group::chooses) {
            backend.sample(&mut self.work.logits, rows, chosen)?;
        }
        match &mut self.group {
            Some(group) => group.agree(rows.len(), chosen),
            None => Ok(()),
        }
    }

    /// Time that went into exchanges with other ranks since the last call, waiting for them included.
    pub fn take_collective_time(&mut self) -> Duration {
        self.group.as_mut().map_or(Duration::ZERO, Group::take_spent)
    }

    /// The logits of the last forward, `[outputs, vocab]`, for tests and tools.
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits(&self, backend: &B, outputs: usize) -> Result<Vec<f32>, Error> {
        Ok(backend.read(&self.work.logits, outputs)?)
    }

    /// The states after the final norm of the last forward, `[n, hidden]`, for tests and tools.
    ///
    /// # Errors
    /// If the device fails.
    pub fn states(&self, backend: &B, n: usize) -> Result<Vec<f32>, Error> {
        Ok(backend.read(&self.work.normed, n)?)
    }
}

/// Makes this rank's summands in the first `n` rows of `buf` the whole; a rank alone has it already.
fn reduce<B: Backend>(
    group: &mut Option<Group<B>>,
    backend: &B,
    n: usize,
    buf: &mut B::Buf,
) -> Result<(), Error> {
    match group {
        Some(group) => group.reduce(backend, n, buf),
        None => Ok(()),
    }
}

/// `residual += branch; out = norm(residual)`, where `branch` is made whole first if it is one rank's summands; it is lost.
fn reduce_norm<B: Backend>(
    group: &mut Option<Group<B>>,
    backend: &B,
    n: usize,
    residual: &mut B::Buf,
    branch: &mut B::Buf,
    norm: &Norm<B::Vector>,
    out: &mut B::Buf,
) -> Result<(), Error> {
    match group {
        Some(group) => group.reduce_norm(backend, n, residual, branch, norm, out),
        None => Ok(backend.add_norm(n, residual, branch, norm, out)?),
    }
}
