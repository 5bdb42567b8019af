//! What lies in the device's memory for longer than a step.

use super::loading::Loading;
use super::{Device, Elem, Memory, View};
use crate::backend::KvSpec;
use crate::cuda::ops::paged::PagedKv;
use crate::tensor::{flatten, stacked_shape};
use crate::{DType, Error, Part, Result};

/// Activations, `[rows, cols]`.
#[derive(Debug)]
pub struct Buf {
    memory: Memory,
    elem: Elem,
    pub(super) cols: usize,
}

impl Buf {
    pub(super) fn new(device: &Device, elem: Elem, rows: usize, cols: usize) -> Result<Buf> {
        let len =
            rows.checked_mul(cols).ok_or(Error::OutOfMemory { what: "activations", bytes: usize::MAX })?;
        let memory = device.allocate(elem, len)?;
        device.fill(memory.view(elem), 0)?;
        Ok(Buf { memory, elem, cols })
    }

    /// The first `n` rows.
    pub(super) fn rows(&self, n: usize) -> View<'_> {
        self.memory.view(self.elem).slice(0..n * self.cols)
    }

    /// The first `n` rows as f32 on the host.
    pub(super) fn read(&self, device: &Device, n: usize) -> Result<Vec<f32>> {
        let bytes = device.read(self.rows(n))?;
        Ok(match self.elem {
            Elem::F16 => {
                bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            Elem::BF16 => {
                bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        })
    }
}

/// Constants in f32.
#[derive(Debug)]
pub struct Vector {
    memory: Memory,
    pub(super) len: usize,
}

impl Vector {
    pub(super) fn new(device: &Device, parts: &[Part<'_>]) -> Result<Vector> {
        let values = flatten(parts)?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(Vector { memory: device.upload(&bytes)?, len: values.len() })
    }

    pub(super) fn view(&self) -> View<'_> {
        self.memory.view(Elem::F32)
    }
}

/// A weight matrix `[out, cols]` as it is stored, row after row.
#[derive(Debug)]
pub struct Matrix {
    memory: Memory,
    elem: Elem,
    pub(super) out: usize,
    pub(super) cols: usize,
}

impl Matrix {
    pub(super) fn new(
        device: &Device,
        loading: &mut Loading,
        parts: &[Part<'_>],
        dtype: DType,
    ) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let elem = Elem::from(dtype);
        let memory = device.allocate(elem, out * cols)?;
        loading.load(device, parts, dtype, memory.view(elem))?;
        Ok(Matrix { memory, elem, out, cols })
    }

    pub(super) fn view(&self) -> View<'_> {
        self.memory.view(self.elem)
    }
}

/// One layer's paged cache.
#[derive(Debug)]
pub struct Kv {
    keys: Memory,
    values: Memory,
    spec: KvSpec,
}

impl Kv {
    pub(super) fn new(device: &Device, spec: KvSpec) -> Result<Kv> {
        let (elem, len) = (Elem::from(spec.dtype), Self::bytes(&spec) / 2 / spec.dtype.size());
        let zeroed = || -> Result<Memory> {
            let memory = device.allocate(elem, len)?;
            device.fill(memory.view(elem), 0)?;
            Ok(memory)
        };
        Ok(Kv { keys: zeroed()?, values: zeroed()?, spec })
    }

    pub(super) fn bytes(spec: &KvSpec) -> usize {
        let features = 2 * spec.kv_heads * spec.head_dim * spec.dtype.size();
        spec.blocks.saturating_mul(spec.block_size).saturating_mul(features)
    }

    pub(super) fn paged(&self) -> PagedKv<'_> {
        let KvSpec { blocks, block_size, kv_heads, head_dim, dtype } = self.spec;
        let (keys, values) = (self.keys.view(dtype.into()), self.values.view(dtype.into()));
        PagedKv { keys, values, scales: None, blocks, block_size, kv_heads, head_dim }
    }
}
