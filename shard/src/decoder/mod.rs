//! The one decoder: what a [`DecoderSpec`] says, computed with the operations of a [`Backend`].

mod group;
mod products;
mod weights;
mod workspace;

use std::ops::Range;
use std::time::{Duration, Instant};

use millrace_kernels::{
    AttentionSpec, Backend, KvSpec, Norm, Prologue, SampleRow, Sampled, SamplingParams, ScoreRow, Scored,
    StepInput, StepSize,
};

use crate::model::{DecoderSpec, LayerSpec};
use crate::{Error, Limits};
use group::Group;
pub use group::{Collective, OverCards, OverHost};
pub(crate) use products::products;
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
    /// Rows of logits that there is room for.
    max_outputs: usize,
    /// The other ranks, if there are any.
    group: Option<Group<B>>,
    /// Recorded steps in which all rows decode, by how many rows, ascending.
    graphs: Vec<(usize, B::Graph)>,
}

/// The kinds of attention of a model's layers.
pub(crate) fn attention(spec: &DecoderSpec) -> Vec<AttentionSpec> {
    let of_layer = |layer: &LayerSpec| AttentionSpec {
        layout: layer.qkv,
        scale: layer.score_scale,
        window: layer.window,
    };
    spec.layers.iter().map(of_layer).collect()
}

/// The largest steps under these limits.
pub(crate) fn step_size<'a>(
    spec: &DecoderSpec,
    limits: &Limits,
    attention: &'a [AttentionSpec],
) -> StepSize<'a> {
    StepSize {
        tokens: limits.max_step_tokens,
        rows: limits.max_sequences,
        sequence_tokens: limits.max_sequence_tokens,
        blocks: limits.num_blocks,
        block_size: limits.block_size,
        kv_dtype: limits.kv_dtype,
        vocab: spec.vocab,
        attention,
    }
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
        let step = backend.step(&step_size(&spec, limits, &attention(&spec)))?;
        let work = Workspace::new(backend, &spec, limits)?;
        let (rows, cols) = (limits.max_sequences, spec.vocab_rows.len());
        let group = ranks.map(|ranks| Group::new(ranks, backend, rows, cols)).transpose()?;
        let max_outputs = limits.max_sequences;
        Ok(Decoder { spec, weights, kv, step, work, max_outputs, group, graphs: Vec::new() })
    }

    /// What the decoder computes.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// A sequence takes `slot` from the next step on: its tokens so far, and how its next ones are chosen.
    ///
    /// # Errors
    /// If the device fails.
    pub fn admit(
        &mut self,
        backend: &B,
        slot: usize,
        tokens: &[u32],
        params: &SamplingParams,
    ) -> Result<(), Error> {
        Ok(backend.admit(&mut self.step, slot, tokens, params)?)
    }

    /// Asks for one step, with a token chosen for each of its samples. No more may be under way than the backend says. Returns the host's time
    /// in the forward pass.
    ///
    /// `input` holds at least one token, and keeps to the limits that the decoder was built for.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn submit(&mut self, backend: &B, input: &StepInput<'_>) -> Result<Duration, Error> {
        let since = Instant::now();
        backend.begin(&mut self.step, input)?;
        let rows = input.rows.len();
        let decodes = input.rows.iter().all(|row| row.decodes);
        let mut forward = Duration::ZERO;
        match self.graphs.iter().find(|(most, _)| decodes && *most >= rows) {
            Some((most, graph)) if backend.pad(&mut self.step, *most) => backend.replay(graph)?,
            _ => {
                self.compute(backend, input.tokens.len(), input.outputs.len())?;
                forward = since.elapsed();
                if !input.samples.is_empty() {
                    self.choose(backend, input.outputs.len(), input.samples)?;
                }
            }
        }
        Ok(forward)
    }

    /// All that is wanted of the step that was submitted last has been asked for, scores included: it is done when all of that is. Otherwise a
    /// rank that only has to wait for its tokens would leave out what others wait for.
    ///
    /// # Errors
    /// If the device fails.
    pub fn finish(&mut self, backend: &B) -> Result<(), Error> {
        Ok(backend.finish(&mut self.step)?)
    }

    /// Whether the oldest step under way is done.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn is_done(&self, backend: &B) -> Result<bool, Error> {
        Ok(backend.is_done(&self.step)?)
    }

    /// Waits for the oldest step under way and appends what it has chosen to `chosen`.
    ///
    /// # Errors
    /// If the device has failed, or another rank was lost.
    pub fn collect(&mut self, backend: &B, chosen: &mut Vec<Sampled>) -> Result<(), Error> {
        backend.collect(&mut self.step, chosen)?;
        // What is done has told of ranks that were missed in it.
        self.group.as_ref().map_or(Ok(()), Group::check)
    }

    /// Records a step in which up to `rows` rows decode, so that it can be asked for at once. Sizes ascend; all ranks record the same ones. Answers
    /// whether the device has a means for it.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn record(&mut self, backend: &B, rows: usize) -> Result<bool, Error> {
        let nothing = StepInput { tokens: &[], rows: &[], outputs: &[], samples: &[] };
        backend.begin(&mut self.step, &nothing)?;
        if !backend.pad(&mut self.step, rows) {
            return Ok(false);
        }
        // Once for real, so that whatever is loaded or chosen on first use is there.
        let mut step = || {
            self.compute(backend, rows, rows)?;
            self.choose(backend, rows, &[])
        };
        step()?;
        let graph = backend.record(step)?;
        backend.finish(&mut self.step)?;
        backend.collect(&mut self.step, &mut Vec::new())?;
        let found = graph.is_some();
        self.graphs.extend(graph.map(|graph| (rows, graph)));
        Ok(found)
    }

    /// Runs one step without choosing tokens, for tests and tools: [`Decoder::logits`] and [`Decoder::states`] have what came of it.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn forward(&mut self, backend: &B, input: &StepInput<'_>) -> Result<(), Error> {
        backend.begin(&mut self.step, input)?;
        self.compute(backend, input.tokens.len(), input.outputs.len())
    }

    /// Stores keys and values of the step's `n` tokens and leaves the logits of its `m` outputs.
    fn compute(&mut self, backend: &B, n: usize, m: usize) -> Result<(), Error> {
        let Decoder { spec, weights, kv, step, work, group, .. } = self;
        let Workspace { hidden, normed, branch, qkv, heads, gate_up, gated, rows, .. } = work;

        backend.prepare(step)?;
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
        if m > 0 {
            backend.gather(step, normed, rows)?; // [m, hidden]
            self.head(backend, m)?;
        }
        Ok(())
    }

    /// Makes logits of the first `m` rows of `work.rows`.
    fn head(&mut self, backend: &B, m: usize) -> Result<(), Error> {
        let Decoder { weights, work: Workspace { rows, logits, .. }, group, .. } = self;
        match group {
            None => backend.linear(m, rows, weights.head(), None, logits)?, // [m, vocab]
            Some(group) => {
                backend.linear(m, rows, weights.head(), None, &mut group.part)?; // [m, vocab_rows]
                group.gather(backend, m, logits)?; // [m, vocab]
            }
        }
        Ok(())
    }

    /// Chooses a token for each of the `m` outputs; the logits are lost.
    fn choose(&mut self, backend: &B, m: usize, samples: &[SampleRow<'_>]) -> Result<(), Error> {
        if self.speaks() {
            backend.sample(&mut self.step, &mut self.work.logits, samples)?;
        }
        if let Some(group) = &mut self.group {
            group.agree(backend, m, &mut self.step)?;
        }
        Ok(backend.append(&mut self.step)?)
    }

    /// Judges tokens by the states of the last forward's tokens in `states`, one for each of `rows`, in their order. The
    /// logits of its outputs are lost. Appends to `scored`, on the rank that chooses tokens alone.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn score(
        &mut self,
        backend: &B,
        states: impl Iterator<Item = Range<usize>>,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<(), Error> {
        let mut left = rows;
        self.in_pieces(backend, states, |decoder, m| {
            decoder.head(backend, m)?;
            let (rows, rest) = left.split_at(m);
            left = rest;
            if decoder.speaks() {
                let Decoder { step, work, .. } = decoder;
                backend.score(step, &mut work.logits, rows, scored)?;
            }
            Ok(())
        })
    }

    /// Calls `each` with the states `[hidden]` after the final norm of these tokens of the last forward, in their order.
    ///
    /// # Errors
    /// If the device fails.
    pub fn for_states(
        &mut self,
        backend: &B,
        states: impl Iterator<Item = Range<usize>>,
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), Error> {
        self.in_pieces(backend, states, |decoder, m| {
            let rows = backend.read(&decoder.work.rows, m)?;
            rows.chunks_exact(decoder.spec.hidden).for_each(&mut each);
            Ok(())
        })
    }

    /// Puts the states of these tokens of the last forward into `work.rows`, as many at a time as there is room for, and
    /// calls `each` with their number.
    fn in_pieces(
        &mut self,
        backend: &B,
        states: impl Iterator<Item = Range<usize>>,
        mut each: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut held = 0;
        for Range { mut start, end } in states {
            while start < end {
                let n = (end - start).min(self.max_outputs - held);
                backend.copy_rows(&self.work.normed, start, n, &mut self.work.rows, held)?;
                (start, held) = (start + n, held + n);
                if held == self.max_outputs {
                    each(self, held)?;
                    held = 0;
                }
            }
        }
        if held > 0 { each(self, held) } else { Ok(()) }
    }

    /// Whether this rank is alone, or the one that answers.
    pub fn speaks(&self) -> bool {
        self.group.as_ref().is_none_or(Group::chooses)
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
