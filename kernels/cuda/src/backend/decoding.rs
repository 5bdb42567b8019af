//! Attention of decode rows: which kernel computes it, and its plans.
//!
//! DecodeAttention rows have a kernel of their own where it supports the model's heads; elsewhere
//! they are computed like prefill rows. A sequence's splits have fixed places, so the result does
//! not depend on the other rows of the step, nor on the number of passes. There is one pass, unless
//! prefixes that many sequences share make more splits than there is memory for.

use std::ops::Range;

use millrace_backend::{AttentionSpec, KeyWindow, Result, StepSize};

use super::buffers::kv_elem;
use crate::ops::attention::PagedAttention;
use crate::ops::decode::{self, AttentionHeads, DecodeAttention, DecodeLimits, PlanDecode};
use crate::ops::paged::{AttentionScores, SequenceBatch};
use crate::{Device, Elem, Memory, View};

/// The plans of a step's decode rows, and the memory for them.
#[derive(Debug)]
pub(super) struct DecodePlans {
    limits: DecodeLimits,
    cache: Elem,
    /// One plan for each window that layers have.
    plans: Vec<(Option<KeyWindow>, Memory)>,
    /// Partial sums of the layer that is computed.
    workspace: Memory,
    /// Counters of these sums, which are zero between layers.
    arrivals: Memory,
    /// The rows of each pass.
    passes: Vec<Range<usize>>,
}

/// Returns a layer's heads in the terms of the decode kernel.
fn heads(attention: &AttentionSpec, activations: Elem, cache: Elem) -> AttentionHeads {
    let layout = attention.layout;
    AttentionHeads {
        heads: layout.heads,
        kv_heads: layout.kv_heads,
        head_dim: layout.head_dim,
        activations,
        cache,
    }
}

/// Returns the limits of the plans, and the heads and windows of the layers that the kernel
/// supports.
fn planned(
    size: &StepSize<'_>,
    activations: Elem,
    cache: Elem,
) -> (DecodeLimits, impl Iterator<Item = (AttentionHeads, Option<KeyWindow>)>) {
    let of_one = decode::splits(cache, size.sequence_tokens);
    // Each sequence may start one split more than its share of the pool has.
    let of_pool =
        decode::splits(cache, size.blocks.saturating_mul(size.block_size)).saturating_add(size.rows);
    let splits = of_pool.max(of_one).min(of_one.saturating_mul(size.rows));
    let layers = size.attention.iter().map(move |layer| (heads(layer, activations, cache), layer.window));
    let layers = layers.filter(|(heads, _)| decode::supports(heads, size.block_size));
    (DecodeLimits { rows: size.rows, queries: 1, splits }, layers)
}

impl DecodePlans {
    pub(super) fn new(device: &Device, size: &StepSize<'_>, activations: Elem) -> Result<DecodePlans> {
        let cache = kv_elem(size.kv_format)?;
        let (limits, layers) = planned(size, activations, cache);
        let (mut plans, mut workspace, mut arrivals) = (Vec::new(), 0, 0);
        for (heads, window) in layers {
            workspace = workspace.max(decode::workspace_len(&heads, &limits));
            arrivals = arrivals.max(decode::arrivals_len(&heads, &limits));
            if !plans.iter().any(|(known, _)| *known == window) {
                plans.push((window, device.allocate(Elem::I32, decode::plan_len(&limits))?));
            }
        }
        let workspace = device.allocate(Elem::F32, workspace)?;
        let arrivals = device.allocate(Elem::U32, arrivals)?;
        device.fill(arrivals.view(Elem::U32), 0)?;
        Ok(DecodePlans { limits, cache, plans, workspace, arrivals, passes: Vec::new() })
    }

    pub(super) fn bytes(size: &StepSize<'_>, activations: Elem) -> usize {
        // A cache in a format that GPUs lack is refused when it is allocated.
        let Ok(cache) = kv_elem(size.kv_format) else { return 0 };
        let (limits, layers) = planned(size, activations, cache);
        let (mut windows, mut workspace, mut arrivals) = (Vec::new(), 0, 0);
        for (heads, window) in layers {
            workspace = workspace.max(decode::workspace_len(&heads, &limits));
            arrivals = arrivals.max(decode::arrivals_len(&heads, &limits));
            windows.push(window);
        }
        windows.sort_unstable();
        windows.dedup();
        4 * (workspace + arrivals + windows.len() * decode::plan_len(&limits))
    }

    /// Sets the decode rows of the next step, given the number of keys that each attends to.
    pub(super) fn set(&mut self, contexts: impl Iterator<Item = usize>) {
        self.passes.clear();
        let (mut first, mut end, mut sum) = (0, 0, 0);
        for context in contexts {
            let splits = decode::splits(self.cache, context);
            if sum + splits > self.limits.splits {
                self.passes.push(first..end);
                (first, sum) = (end, 0);
            }
            sum += splits;
            end += 1;
        }
        if first < end {
            self.passes.push(first..end);
        }
    }

    /// Tells whether one pass is enough for all decode rows.
    pub(super) fn is_single(&self) -> bool {
        self.passes.len() <= 1
    }

    /// Returns the number of decode rows.
    pub(super) fn rows(&self) -> usize {
        self.passes.last().map_or(0, |pass| pass.end)
    }

    /// Widens the only pass to `rows` rows, some of which are empty.
    pub(super) fn pad(&mut self, rows: usize) {
        self.passes.clear();
        self.passes.push(0..rows);
    }

    /// Computes the plans, if there is one pass: then all layers with the same window share one.
    pub(super) fn plan(&self, device: &Device, batch: &SequenceBatch<'_>) -> Result<()> {
        match &self.passes[..] {
            [pass] => self.plans.iter().try_for_each(|(window, plan)| {
                self.plan_pass(device, &of_rows(batch, pass), *window, plan.view(Elem::I32))
            }),
            _ => Ok(()),
        }
    }

    fn plan_pass(
        &self,
        device: &Device,
        batch: &SequenceBatch<'_>,
        window: Option<KeyWindow>,
        plan: View<'_>,
    ) -> Result<()> {
        let plan = PlanDecode {
            batch: *batch,
            scores: scores(1.0, window),
            cache: self.cache,
            limits: self.limits,
            splits: self.limits.splits,
            plan,
        };
        decode::plan(device, &plan)
    }

    /// Computes the attention of the decode rows and returns their number; 0 if the kernel does not
    /// support these heads.
    pub(super) fn attention(
        &self,
        device: &Device,
        attention: &PagedAttention<'_>,
        spec: &AttentionSpec,
    ) -> Result<usize> {
        let heads = heads(spec, attention.qkv.elem(), attention.kv.keys.elem());
        let plan = self.plans.iter().find(|(window, _)| *window == spec.window);
        let Some((_, plan)) = plan.filter(|_| decode::supports(&heads, attention.kv.block_size)) else {
            return Ok(0);
        };
        let plan = plan.view(Elem::I32);
        for pass in &self.passes {
            let batch = of_rows(&attention.batch, pass);
            if !self.is_single() {
                self.plan_pass(device, &batch, spec.window, plan)?;
            }
            let decode = DecodeAttention {
                heads,
                limits: self.limits,
                queries: attention.qkv,
                query_stride: attention.stride,
                kv: attention.kv,
                batch,
                scores: attention.scores,
                plan,
                workspace: self.workspace.view(Elem::F32),
                arrivals: self.arrivals.view(Elem::U32),
                out: attention.out,
            };
            decode::decode(device, &decode)?;
        }
        Ok(self.rows())
    }
}

/// Returns the rows `rows` of a step.
pub(super) fn of_rows<'a>(batch: &SequenceBatch<'a>, rows: &Range<usize>) -> SequenceBatch<'a> {
    let &Range { start, end } = rows;
    SequenceBatch {
        rows: end - start,
        query_start: batch.query_start.slice(start..end + 1),
        context: batch.context.slice(start..end),
        tables: batch.tables.slice(start * batch.table_stride..end * batch.table_stride),
        ..*batch
    }
}

/// Returns scores with a scale and a window and nothing else.
pub(super) fn scores(scale: f32, window: Option<KeyWindow>) -> AttentionScores<'static> {
    AttentionScores { scale, soft_cap: None, window, alibi: None, sinks: None, prefix: None }
}
