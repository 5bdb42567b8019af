//! The activations of a step, allocated once.

use millrace_kernels::{Backend, Result};

use crate::Limits;
use crate::model::{DecoderSpec, LayerSpec};

/// Every buffer that a step writes, for `t` tokens and `s` outputs at most.
pub(super) struct Workspace<B: Backend> {
    /// The residual stream, `[t, hidden]`.
    pub(super) hidden: B::Buf,
    /// The normalised residual stream, `[t, hidden]`.
    pub(super) normed: B::Buf,
    /// What a branch adds to the residual stream, `[t, hidden]`.
    pub(super) branch: B::Buf,
    /// Fused projections, `[t, (heads + 2 kv_heads) * head_dim]`.
    pub(super) qkv: ByWidth<B::Buf>,
    /// Attention of all heads, `[t, heads * head_dim]`.
    pub(super) heads: ByWidth<B::Buf>,
    /// Gate and up, `[t, 2 * width]`.
    pub(super) gate_up: ByWidth<B::Buf>,
    /// Their product, `[t, width]`.
    pub(super) gated: ByWidth<B::Buf>,
    /// States whose logits are wanted, `[s, hidden]`.
    pub(super) rows: B::Buf,
    /// `[s, vocab]`.
    pub(super) logits: B::Buf,
}

impl<B: Backend> Workspace<B> {
    pub(super) fn new(backend: &B, spec: &DecoderSpec, limits: &Limits) -> Result<Self> {
        let (tokens, outputs) = (limits.max_step_tokens, limits.max_sequences);
        let by_width = |width: fn(&LayerSpec) -> usize| {
            ByWidth::new(widths(spec, width), |cols| backend.buf(tokens, cols))
        };
        Ok(Workspace {
            hidden: backend.buf(tokens, spec.hidden)?,
            normed: backend.buf(tokens, spec.hidden)?,
            branch: backend.buf(tokens, spec.hidden)?,
            qkv: by_width(QKV)?,
            heads: by_width(HEADS)?,
            gate_up: by_width(GATE_UP)?,
            gated: by_width(GATED)?,
            rows: backend.buf(outputs, spec.hidden)?,
            logits: backend.logits(outputs, spec.vocab)?,
        })
    }
}

/// Elements of all activations except the logits, for steps of `tokens` tokens and `outputs` outputs.
pub(crate) fn activation_elements(spec: &DecoderSpec, tokens: usize, outputs: usize) -> usize {
    let of_layers: usize =
        [QKV, HEADS, GATE_UP, GATED].into_iter().flat_map(|width| widths(spec, width)).sum();
    let of_tokens = tokens.saturating_mul(3 * spec.hidden + of_layers);
    of_tokens.saturating_add(outputs.saturating_mul(spec.hidden))
}

const QKV: fn(&LayerSpec) -> usize = |layer| layer.qkv.cols();
const HEADS: fn(&LayerSpec) -> usize = |layer| layer.qkv.heads * layer.qkv.head_dim;
const GATE_UP: fn(&LayerSpec) -> usize = |layer| 2 * layer.mlp.width;
const GATED: fn(&LayerSpec) -> usize = |layer| layer.mlp.width;

/// The different widths among the layers, ascending.
fn widths(spec: &DecoderSpec, width: fn(&LayerSpec) -> usize) -> Vec<usize> {
    let mut widths: Vec<usize> = spec.layers.iter().map(width).collect();
    widths.sort_unstable();
    widths.dedup();
    widths
}

/// One buffer for each width that layers have; nearly always a single one.
pub(super) struct ByWidth<Buf>(Vec<(usize, Buf)>);

impl<Buf> ByWidth<Buf> {
    fn new(widths: Vec<usize>, buf: impl Fn(usize) -> Result<Buf>) -> Result<Self> {
        widths.into_iter().map(|width| Ok((width, buf(width)?))).collect::<Result<_>>().map(ByWidth)
    }

    /// The buffer of this width.
    ///
    /// # Panics
    /// If no layer has this width.
    pub(super) fn of(&mut self, width: usize) -> &mut Buf {
        let at = self.0.iter().position(|(of, _)| *of == width).expect("every layer's width has a buffer");
        &mut self.0[at].1
    }
}
