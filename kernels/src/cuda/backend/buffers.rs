//! What lies in the device's memory for longer than a step.

use super::loading::Loading;
use super::{Device, Elem, Memory, View};
use crate::backend::{KvSpec, MatrixFormat};
use crate::cuda::ops::paged::PagedKv;
use crate::cuda::pack::{DEPTH, Loaded, OUTPUTS};
use crate::tensor::{flatten, stacked_shape};
use crate::{Error, Part, Result};

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

/// A weight matrix `[out, cols]`.
#[derive(Debug)]
pub struct Matrix {
    pub(super) kept: Kept,
    pub(super) out: usize,
    pub(super) cols: usize,
}

/// How a matrix lies in memory.
#[derive(Debug)]
pub(super) enum Kept {
    /// As it is stored, row after row.
    Dense(Memory, Elem),
    /// Packed, for the kernels that multiply by weights of few bits.
    Packed(Loaded),
}

impl Matrix {
    pub(super) fn new(
        device: &Device,
        loading: &mut Loading,
        parts: &[Part<'_>],
        format: MatrixFormat,
    ) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let kept = match format {
            MatrixFormat::Dense(dtype) => {
                let elem = Elem::from(dtype);
                let memory = device.allocate(elem, out * cols)?;
                loading.load(device, parts, dtype, memory.view(elem))?;
                Kept::Dense(memory, elem)
            }
            MatrixFormat::Fp8 => {
                let (padded, depth) = padded(out, cols);
                let data = device.allocate(Elem::U8, padded * depth)?;
                if out < padded {
                    // What the copies do not touch.
                    device.fill(data.view(Elem::U8).slice(out * depth..padded * depth), 0)?;
                }
                let mut scales = loading.load_fp8(device, parts, depth, data.view(Elem::U8))?;
                scales.resize(padded, 0.0);
                let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
                Kept::Packed(Loaded::fp8(depth, data, device.upload(&bytes)?))
            }
        };
        Ok(Matrix { kept, out, cols })
    }

    /// Bytes of a matrix.
    pub(super) fn bytes(out: usize, cols: usize, format: MatrixFormat) -> usize {
        match format {
            MatrixFormat::Dense(_) => format.bytes(out, cols),
            MatrixFormat::Fp8 => {
                let (padded, depth) = padded(out, cols);
                format.bytes(padded, depth)
            }
        }
    }

    /// The numbers as they are.
    pub(super) fn dense(&self) -> Result<View<'_>> {
        match &self.kept {
            Kept::Dense(memory, elem) => Ok(memory.view(*elem)),
            Kept::Packed(_) => Err(Error::Unsupported("rows of a packed matrix".to_owned())),
        }
    }
}

/// Rows and columns of a packed matrix of eight bits.
fn padded(out: usize, cols: usize) -> (usize, usize) {
    (out.next_multiple_of(OUTPUTS), cols.next_multiple_of(DEPTH))
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
