//! The two phases of the products of adapters, and their division among tasks.

use half::{bf16, f16};
use millrace_backend::AdapterSpec;

use super::super::memory::Shared;
use super::super::queue::{Queue, TokenGroup};
use super::super::simd::Element;
use super::super::{Buf, Cpu};
use super::expand::Expand;
use super::pool::{Adapters, Place, Pool, PoolNumbers, padded};
use super::shrink::Shrink;

/// Features that a task of the first phase computes.
const FEATURES: usize = 8;
/// Outputs that a task of the second phase changes.
const OUTPUTS: usize = 512;

/// The operands of a step with adapters in one matrix.
struct AdaptedStep<'a> {
    adapters: &'a Adapters,
    groups: &'a [TokenGroup],
    /// The tokens of all groups.
    tokens: &'a [u32],
    /// `[n, inputs]`
    x: &'a [f32],
    /// `[n, mid_cols]`
    mid: Shared<f32>,
    mid_cols: usize,
    /// `[n, outputs]`
    out: Shared<f32>,
}

impl Cpu {
    /// Adds the products of the adapters of a step's tokens in one matrix.
    pub(crate) fn adapt_rows(
        &self,
        step: &Queue,
        x: &Buf,
        adapters: &Adapters,
        mid: &mut Buf,
        out: &mut Buf,
    ) {
        let Some(last) = step.token_groups.last() else { return };
        let &AdapterSpec { inputs, outputs, places, rank, .. } = &adapters.spec;
        assert!(last.adapter < places, "adapter {} in a pool of {places}", last.adapter);
        assert!(x.cols == inputs && out.cols == outputs, "{} to {} by adapters", x.cols, out.cols);
        assert!(mid.cols >= rank, "{} columns for features of rank {rank}", mid.cols);
        let n = step.tokens.len();
        let adapted = AdaptedStep {
            adapters,
            groups: &step.token_groups,
            tokens: &step.adapted_tokens,
            x: x.rows(n),
            mid_cols: mid.cols,
            mid: Shared::new(mid.rows_mut(n)),
            out: Shared::new(out.rows_mut(n)),
        };
        match &adapters.numbers {
            PoolNumbers::F32(pool) => self.add_products::<f32>(&adapted, pool),
            PoolNumbers::F16(pool) => self.add_products::<f16>(&adapted, pool),
            PoolNumbers::BF16(pool) => self.add_products::<bf16>(&adapted, pool),
        }
    }

    fn add_products<T: Element>(&self, step: &AdaptedStep<'_>, pool: &Pool<T>) {
        let (spec, groups) = (&step.adapters.spec, step.groups);
        let features: usize = groups.iter().map(|group| group.count * step.place(group).rank).sum();
        if features == 0 {
            return;
        }
        let width = padded(spec.inputs);
        let parts = spec.rank.div_ceil(FEATURES);
        self.parallel(groups.len() * parts, features * spec.inputs, |task, _| {
            let (group, first) = (&groups[task / parts], task % parts * FEATURES);
            let rank = step.place(group).rank;
            if first < rank {
                let rows = first..rank.min(first + FEATURES);
                let down = &pool.down(spec, group.adapter)[first * width..rows.end * width];
                let (tokens, x, mid) = (step.tokens_of(group), step.x, step.mid);
                let (inputs, mid_cols) = (spec.inputs, step.mid_cols);
                self.target.dispatch(Shrink { inputs, tokens, x, down, features: rows, mid, mid_cols });
            }
        });
        let parts = spec.outputs.div_ceil(OUTPUTS);
        self.parallel(groups.len() * parts, features * spec.outputs, |task, _| {
            let (group, first) = (&groups[task / parts], task % parts * OUTPUTS);
            self.target.dispatch(Expand {
                tokens: step.tokens_of(group),
                outputs: first..spec.outputs.min(first + OUTPUTS),
                pieces: &step.place(group).pieces,
                up: pool.up(spec, group.adapter),
                panel_width: step.adapters.panel_width,
                mid: step.mid,
                mid_cols: step.mid_cols,
                out: step.out,
                cols: spec.outputs,
            });
        });
    }
}

impl AdaptedStep<'_> {
    fn place(&self, group: &TokenGroup) -> &Place {
        &self.adapters.places[group.adapter]
    }

    fn tokens_of(&self, group: &TokenGroup) -> &[u32] {
        &self.tokens[group.first..][..group.count]
    }
}
