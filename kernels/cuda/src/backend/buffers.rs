//! The objects that stay in device memory for longer than a step.

use millrace_backend::{Error, KvFormat, KvSpec, Result, Segment};
use millrace_numbers::codes::{CodeType, StoredCodes};
use millrace_numbers::tensor::{flatten, stacked_shape};
use millrace_numbers::{IntFormat, Part, WeightFormat};

use super::loading::WeightUpload;
use crate::ops::latent::PagedLatents;
use crate::ops::paged::PagedKv;
use crate::weights::{DEPTH, GroupBlocks, GroupLayout, OUTPUTS, UploadedWeight};
use crate::{Device, Elem, Memory, View};

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

    /// Returns the first `n` rows.
    pub(super) fn rows(&self, n: usize) -> View<'_> {
        self.memory.view(self.elem).slice(0..n * self.cols)
    }

    /// Waits for the device and returns the first `n` rows as f32.
    pub(super) fn read(&self, device: &Device, n: usize) -> Result<Vec<f32>> {
        let mut numbers = vec![0.0; n * self.cols];
        self.download(device, n, &mut Vec::new(), &mut numbers)?;
        Ok(numbers)
    }

    /// Waits for the device and copies the first `n` rows to `to` as f32, by way of `scratch`.
    pub(super) fn download(
        &self,
        device: &Device,
        n: usize,
        scratch: &mut Vec<u8>,
        to: &mut [f32],
    ) -> Result<()> {
        let rows = self.rows(n);
        assert_eq!(to.len(), rows.len(), "rows on the host and on the device");
        scratch.resize(rows.bytes(), 0);
        device.read_to(rows, scratch)?;
        let numbers = to.iter_mut();
        match self.elem {
            Elem::F16 => numbers
                .zip(scratch.chunks_exact(2))
                .for_each(|(to, b)| *to = half::f16::from_le_bytes([b[0], b[1]]).to_f32()),
            Elem::BF16 => numbers
                .zip(scratch.chunks_exact(2))
                .for_each(|(to, b)| *to = half::bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            _ => numbers
                .zip(scratch.chunks_exact(4))
                .for_each(|(to, b)| *to = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        }
        Ok(())
    }

    /// Replaces the first `n` rows by `from`, by way of `scratch`.
    pub(super) fn upload(
        &self,
        device: &Device,
        n: usize,
        from: &[f32],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        scratch.clear();
        match self.elem {
            Elem::F16 => scratch.extend(from.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes())),
            Elem::BF16 => scratch.extend(from.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes())),
            _ => scratch.extend(from.iter().flat_map(|x| x.to_le_bytes())),
        }
        device.write(self.rows(n), scratch)
    }
}

/// Constants in f32.
#[derive(Debug)]
pub struct Vector {
    memory: Memory,
    pub(super) len: usize,
}

impl Vector {
    pub(super) fn new(device: &Device, parts: &[Part]) -> Result<Vector> {
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
    /// The rows, from the first to the last. Rows of other than one format are all packed.
    pub(super) segments: Vec<MatrixSegment>,
    pub(super) out: usize,
    pub(super) cols: usize,
}

/// Rows of a matrix that lie in one format in device memory.
#[derive(Debug)]
pub(super) struct MatrixSegment {
    pub(super) storage: MatrixStorage,
    pub(super) rows: usize,
}

/// The layout of a matrix in device memory, or of several, one after the other.
#[derive(Debug)]
pub(super) enum MatrixStorage {
    /// Row-major numbers of one type.
    Dense(Memory, Elem),
    /// Packed for the kernels that multiply by weights of few bits.
    Packed(UploadedWeight),
}

impl MatrixStorage {
    /// Copies matrices of one shape to the device, one after the other. Packed ones are padded to a
    /// multiple of 16 rows each.
    pub(super) fn load(
        device: &Device,
        upload: &mut WeightUpload,
        matrices: &[&[Part]],
        format: WeightFormat,
    ) -> Result<MatrixStorage> {
        match format {
            WeightFormat::Dense(dtype) => {
                let parts = matrices.concat();
                let (rows, cols) = stacked_shape(&parts)?;
                let elem = Elem::from(dtype);
                let memory = device.allocate(elem, rows * cols)?;
                upload.dense(device, &parts, dtype, memory.view(elem))?;
                Ok(MatrixStorage::Dense(memory, elem))
            }
            WeightFormat::Fp8 => Ok(MatrixStorage::Packed(upload_fp8(device, upload, matrices)?)),
            WeightFormat::Int(_) | WeightFormat::K(_) | WeightFormat::Codes(_) => {
                Ok(MatrixStorage::Packed(upload_groups(device, upload, matrices, format)?))
            }
            WeightFormat::Nf4 => {
                Err(Error::Unsupported(format!("{} weights; only the CPU has them", format.name())))
            }
        }
    }

    /// Returns the bytes of a matrix `[out, cols]` whose columns are in order.
    pub(super) fn bytes(out: usize, cols: usize, format: WeightFormat) -> usize {
        match GroupLayout::of(format, out, cols) {
            Some(layout) => layout.bytes(),
            None => format.bytes(out, cols),
        }
    }
}

impl Matrix {
    pub(super) fn new(device: &Device, upload: &mut WeightUpload, stacked: &[Segment<'_>]) -> Result<Matrix> {
        let (out, cols) = stacked_shape(stacked.iter().flat_map(|segment| segment.parts))?;
        let (mut segments, mut before) = (Vec::with_capacity(stacked.len()), 0);
        for &Segment { parts, format } in stacked {
            if stacked.len() > 1 && !stacks(format) {
                return Err(Error::Unsupported(format!("rows of {} among others", format.name())));
            }
            let storage = MatrixStorage::load(device, upload, &[parts], format)
                .map_err(|error| Segment::error_after(before, error))?;
            before += parts.len();
            segments.push(MatrixSegment { storage, rows: stacked_shape(parts)?.0 });
        }
        Ok(Matrix { segments, out, cols })
    }

    /// Returns the bytes of a matrix `[out, cols]`.
    pub(super) fn bytes(out: usize, cols: usize, format: WeightFormat) -> usize {
        let columns = match format {
            // A checkpoint may have an order of columns.
            WeightFormat::Int(IntFormat::Stored(_)) => {
                GroupLayout::of(format, out, cols).map_or(0, |layout| layout.depth * Elem::I32.size())
            }
            _ => 0,
        };
        MatrixStorage::bytes(out, cols, format).saturating_add(columns)
    }

    /// Tells whether the device's library multiplies by the matrix if activations are quantized.
    pub(super) fn is_fp8_by_row(&self) -> bool {
        self.packed().any(UploadedWeight::is_fp8_by_row)
    }

    /// Tells whether the columns of the matrix have an order of their own.
    pub(super) fn has_ordered_columns(&self) -> bool {
        self.packed().any(UploadedWeight::has_ordered_columns)
    }

    fn packed(&self) -> impl Iterator<Item = &UploadedWeight> {
        self.segments.iter().filter_map(|segment| match &segment.storage {
            MatrixStorage::Packed(weight) => Some(weight),
            MatrixStorage::Dense(..) => None,
        })
    }

    /// Returns the numbers of a dense matrix.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a packed matrix.
    pub(super) fn dense(&self) -> Result<View<'_>> {
        match &self.segments[..] {
            [MatrixSegment { storage: MatrixStorage::Dense(memory, elem), .. }] => Ok(memory.view(*elem)),
            _ => Err(Error::Unsupported("rows of a packed matrix".to_owned())),
        }
    }
}

/// Tells whether rows in this format can be multiplied by beside rows in others: our own kernels
/// write a part of the columns of a result, and the device's library does not.
pub(super) fn stacks(format: WeightFormat) -> bool {
    match format {
        WeightFormat::Int(_) | WeightFormat::K(_) => true,
        WeightFormat::Codes(StoredCodes { codes, .. }) => codes == CodeType::FourBits,
        WeightFormat::Dense(_) | WeightFormat::Fp8 | WeightFormat::Nf4 => false,
    }
}

/// Quantizes matrices to FP8, and copies them to the device.
fn upload_fp8(device: &Device, upload: &mut WeightUpload, matrices: &[&[Part]]) -> Result<UploadedWeight> {
    let (out, cols) = stacked_shape(matrices.first().copied().unwrap_or_default())?;
    let (padded, depth) = packed_shape(out, cols);
    let data = device.allocate(Elem::U8, matrices.len() * padded * depth)?;
    let mut scales = Vec::new();
    for (index, parts) in matrices.iter().enumerate() {
        let own = data.view(Elem::U8).slice(index * padded * depth..(index + 1) * padded * depth);
        if out < padded {
            // The upload does not write the padding rows.
            device.fill(own.slice(out * depth..padded * depth), 0)?;
        }
        scales.extend(upload.fp8(device, parts, depth, own)?);
        scales.resize((index + 1) * padded, 0.0);
    }
    let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    Ok(UploadedWeight::fp8(depth, data, device.upload(&bytes)?))
}

/// Packs matrices in groups that share a scale, and copies them to the device.
fn upload_groups(
    device: &Device,
    upload: &mut WeightUpload,
    matrices: &[&[Part]],
    format: WeightFormat,
) -> Result<UploadedWeight> {
    let parts = matrices.concat();
    let blocks = GroupBlocks::new(&parts, matrices.len(), format)?;
    let layout = blocks.layout();
    let data = device.allocate(Elem::U8, layout.blocks() * layout.block_bytes())?;
    let scales = upload.groups(device, &blocks, data.view(Elem::U8))?;
    let scales: Vec<u8> = scales.into_iter().flat_map(u32::to_le_bytes).collect();
    let columns = blocks.columns().map(|columns| {
        let bytes: Vec<u8> = columns.into_iter().flat_map(i32::to_le_bytes).collect();
        device.upload(&bytes)
    });
    Ok(UploadedWeight::groups(&blocks, data, device.upload(&scales)?, columns.transpose()?))
}

/// Returns the rows and columns of a packed matrix of eight bits, padding included.
fn packed_shape(out: usize, cols: usize) -> (usize, usize) {
    (out.next_multiple_of(OUTPUTS), cols.next_multiple_of(DEPTH))
}

/// Returns the element type of a KV cache.
///
/// # Errors
/// [`Error::Unsupported`] for a format that GPUs lack.
pub(super) fn kv_elem(format: KvFormat) -> Result<Elem> {
    Ok(format.dense()?.into())
}

/// One layer's paged KV cache.
#[derive(Debug)]
pub struct Kv {
    keys: Memory,
    values: Memory,
    elem: Elem,
    spec: KvSpec,
}

impl Kv {
    pub(super) fn new(device: &Device, spec: KvSpec) -> Result<Kv> {
        let KvSpec { key_dim, value_dim, .. } = spec;
        if value_dim != 0 && key_dim != value_dim {
            return Err(Error::Unsupported(format!("key heads of {key_dim} and value heads of {value_dim}")));
        }
        let elem = kv_elem(spec.format)?;
        let zeroed = |len: usize| -> Result<Memory> {
            let memory = device.allocate(elem, len)?;
            device.fill(memory.view(elem), 0)?;
            Ok(memory)
        };
        Ok(Kv { keys: zeroed(spec.key_elements())?, values: zeroed(spec.value_elements())?, elem, spec })
    }

    /// Returns the keys and the values of one block; a cache of latents has no values.
    pub(super) fn block(&self, block: usize) -> Result<impl Iterator<Item = View<'_>>> {
        let KvSpec { blocks, .. } = self.spec;
        if block >= blocks {
            return Err(Error::Shape(format!("there is no block {block} of {blocks}")));
        }
        let arrays = [(&self.keys, self.spec.key_elements()), (&self.values, self.spec.value_elements())];
        let pieces = arrays.into_iter().map(move |(memory, elements)| {
            let size = elements / blocks;
            memory.view(self.elem).slice(block * size..(block + 1) * size)
        });
        Ok(pieces.filter(|piece| !piece.is_empty()))
    }

    pub(super) fn latents(&self) -> PagedLatents<'_> {
        let KvSpec { blocks, block_size, key_dim, .. } = self.spec;
        PagedLatents { rows: self.keys.view(self.elem), blocks, block_size, key_dim }
    }

    pub(super) fn paged(&self) -> PagedKv<'_> {
        // Key and value heads have the same size: `new` refuses others.
        let KvSpec { blocks, block_size, heads: kv_heads, key_dim: head_dim, .. } = self.spec;
        let (keys, values) = (self.keys.view(self.elem), self.values.view(self.elem));
        PagedKv { keys, values, scales: None, blocks, block_size, kv_heads, head_dim }
    }
}
