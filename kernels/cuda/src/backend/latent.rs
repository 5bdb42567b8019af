//! Attention over latents.

use millrace_backend::{Error, HeadRows, LatentSpec, Result, RopeSpec};
use millrace_numbers::{DType, Part};

use super::buffers::{Buf, Kv, Vector};
use super::cuda::Cuda;
use super::decoding::scores;
use super::queue::Queue;
use crate::ops::latent::{self, LatentAttention, LatentPrologue, LinearHeads};
use crate::ops::prologue::Rope;
use crate::{Device, Elem, Memory};

/// A matrix of each head, `[heads, inputs, outputs]`.
#[derive(Debug)]
pub struct HeadMatrices {
    memory: Memory,
    elem: Elem,
    heads: usize,
    inputs: usize,
    outputs: usize,
}

impl HeadMatrices {
    pub(super) fn new(
        device: &Device,
        heads: &[Vec<Part>],
        rows: HeadRows,
        dtype: DType,
    ) -> Result<HeadMatrices> {
        let (values, inputs, outputs) = rows.arrange(heads)?;
        let bytes: Vec<u8> = match dtype {
            DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
            DType::BF16 => values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        };
        let memory = device.upload(&bytes)?;
        Ok(HeadMatrices { memory, elem: dtype.into(), heads: heads.len(), inputs, outputs })
    }
}

impl Cuda {
    /// Multiplies the first features of each head by the head's matrix.
    pub(super) fn multiply_heads(&self, n: usize, x: &Buf, w: &HeadMatrices, out: &Buf) -> Result<()> {
        let &HeadMatrices { heads, inputs, outputs, elem, ref memory } = w;
        if heads == 0
            || !x.cols.is_multiple_of(heads)
            || out.cols + heads * inputs != x.cols + heads * outputs
        {
            return Err(Error::Shape(format!("{} to {} features of {heads} heads", x.cols, out.cols)));
        }
        latent::linear_heads(
            &self.device,
            &LinearHeads {
                tokens: n,
                heads,
                from: x.cols / heads,
                inputs,
                outputs,
                x: x.rows(n),
                w: memory.view(elem),
                out: out.rows(n),
            },
        )
    }

    /// Rotates queries and latents, and writes the latents into the cache.
    pub(super) fn store_latents(
        &self,
        step: &Queue,
        (queries, latents): (&Buf, &Buf),
        rope: &RopeSpec<Vector>,
        kv: &Kv,
    ) -> Result<()> {
        let tokens = step.tokens();
        latent::latent_prologue(
            &self.device,
            &LatentPrologue {
                tokens,
                heads: queries.cols / latents.cols.max(1),
                queries: queries.rows(tokens),
                latents: latents.rows(tokens),
                rope: Rope {
                    style: rope.style,
                    rotary_dim: rope.rotary_dim,
                    cos: rope.cos.view(),
                    sin: rope.sin.view(),
                    table_positions: rope.cos.len / (rope.rotary_dim / 2).max(1),
                    positions: step.positions(),
                    second_positions: None,
                },
                slots: step.places(),
                cache: kv.latents(),
            },
        )
    }

    /// Computes attention over the cached latents.
    pub(super) fn attend_latents(
        &self,
        step: &Queue,
        (queries, kv): (&Buf, &Kv),
        spec: &LatentSpec,
        out: &Buf,
    ) -> Result<()> {
        let tokens = step.tokens();
        latent::latent_attention(
            &self.device,
            &LatentAttention {
                heads: spec.heads,
                value_dim: spec.value_dim,
                queries: queries.rows(tokens),
                cache: kv.latents(),
                batch: step.batch(),
                scores: scores(spec.scale, None),
                out: out.rows(tokens),
            },
        )
    }
}
