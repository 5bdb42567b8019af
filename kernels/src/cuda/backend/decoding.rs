//! Attention of the rows that decode: which kernel they go to, and its plans.
//!
//! They go to a kernel of their own where it takes the model's heads; else they are treated like prompts. A sequence's splits have
//! fixed places, so it is all one what else is in the step, and in how many passes the rows are done: one, unless prefixes that
//! many sequences share make the splits more than there is memory for.

use std::ops::Range;

use super::{Device, Elem, Memory, View};
use crate::Result;
use crate::backend::{AttentionSpec, StepSize};
use crate::cuda::ops::attention::Attention;
use crate::cuda::ops::decode::{self, Decode, Heads, Limits};
use crate::cuda::ops::paged::{Batch, Scores};

/// Memory for the plans of a step.
#[derive(Debug)]
pub(super) struct Decoding {
    limits: Limits,
    cache: Elem,
    /// A plan for each window that layers have.
    plans: Vec<(Option<usize>, Memory)>,
    /// For partial sums of any layer.
    workspace: Memory,
    /// The rows of each pass.
    passes: Vec<Range<usize>>,
}

/// How the decode kernel sees a layer with activations of type `activations`.
fn heads(attention: &AttentionSpec, activations: Elem, cache: Elem) -> Heads {
    let layout = attention.layout;
    Heads { heads: layout.heads, kv_heads: layout.kv_heads, head_dim: layout.head_dim, activations, cache }
}

/// The step's limits, and the layers that the kernel takes.
fn planned(size: &StepSize<'_>, activations: Elem) -> (Limits, impl Iterator<Item = (Heads, Option<usize>)>) {
    let cache = Elem::from(size.kv_dtype);
    let of_one = decode::splits(cache, size.sequence_tokens);
    // Each sequence may begin a split more than its share of the pool has.
    let of_pool =
        decode::splits(cache, size.blocks.saturating_mul(size.block_size)).saturating_add(size.rows);
    let splits = of_pool.max(of_one).min(of_one.saturating_mul(size.rows));
    let layers = size.attention.iter().map(move |layer| (heads(layer, activations, cache), layer.window));
    let layers = layers.filter(|(heads, _)| decode::supports(heads, size.block_size));
    (Limits { rows: size.rows, queries: 1, splits }, layers)
}

impl Decoding {
    pub(super) fn new(device: &Device, size: &StepSize<'_>, activations: Elem) -> Result<Decoding> {
        let (limits, layers) = planned(size, activations);
        let (mut plans, mut workspace) = (Vec::new(), 0);
        for (heads, window) in layers {
            workspace = workspace.max(decode::workspace_len(&heads, &limits));
            if !plans.iter().any(|(known, _)| *known == window) {
                plans.push((window, device.allocate(Elem::I32, decode::plan_len(&limits))?));
            }
        }
        let workspace = device.allocate(Elem::F32, workspace)?;
        Ok(Decoding { limits, cache: size.kv_dtype.into(), plans, workspace, passes: Vec::new() })
    }

    pub(super) fn bytes(size: &StepSize<'_>, activations: Elem) -> usize {
        let (limits, layers) = planned(size, activations);
        let (mut windows, mut workspace) = (Vec::new(), 0);
        for (heads, window) in layers {
            workspace = workspace.max(decode::workspace_len(&heads, &limits));
            windows.push(window);
        }
        windows.sort_unstable();
        windows.dedup();
        4 * (workspace + windows.len() * decode::plan_len(&limits))
    }

    /// Takes in the rows that decode, by the keys that each sees.
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

    /// Whether one pass does for them all.
    pub(super) fn is_single(&self) -> bool {
        self.passes.len() <= 1
    }

    /// How many rows decode.
    pub(super) fn rows(&self) -> usize {
        self.passes.last().map_or(0, |pass| pass.end)
    }

    /// Widens the only pass to so many rows, some of which are empty.
    pub(super) fn pad(&mut self, rows: usize) {
        self.passes.clear();
        self.passes.push(0..rows);
    }

    /// Makes the plans, if all layers can use the same.
    pub(super) fn plan(&self, device: &Device, batch: &Batch<'_>) -> Result<()> {
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
        batch: &Batch<'_>,
        window: Option<usize>,
        plan: View<'_>,
    ) -> Result<()> {
        decode::plan(device, batch, &scores(1.0, window), self.cache, &self.limits, self.limits.splits, plan)
    }

    /// Attention of the rows that decode. Answers how many they are: 0 if the kernel does not take these heads.
    pub(super) fn attention(
        &self,
        device: &Device,
        attention: &Attention<'_>,
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
            let decode = Decode {
                heads,
                limits: self.limits,
                queries: attention.qkv,
                query_stride: attention.stride,
                kv: attention.kv,
                batch,
                scores: attention.scores,
                plan,
                workspace: self.workspace.view(Elem::F32),
                out: attention.out,
            };
            decode::decode(device, &decode)?;
        }
        Ok(self.rows())
    }
}

/// Some rows of a step.
pub(super) fn of_rows<'a>(batch: &Batch<'a>, rows: &Range<usize>) -> Batch<'a> {
    let &Range { start, end } = rows;
    Batch {
        rows: end - start,
        query_start: batch.query_start.slice(start..end + 1),
        context: batch.context.slice(start..end),
        tables: batch.tables.slice(start * batch.table_stride..end * batch.table_stride),
        ..*batch
    }
}

/// Plain scores.
pub(super) fn scores(scale: f32, window: Option<usize>) -> Scores<'static> {
    Scores { scale, soft_cap: None, window, alibi: None, sinks: None, prefix: None }
}
