//! Converts weights for upload to a device with memory of its own. Several threads pack the
//! elements of a part, converted to another type.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use millrace_numbers::formats::fp8;
use millrace_numbers::{DType, Part};

use crate::{Error, Result, ThreadPool};

/// Bytes that a thread packs at a time: enough to be worth a task, and small enough that all
/// threads finish at about the same time.
const PIECE: usize = 1 << 20;
/// Elements that are converted to f32 and on to the target type at a time.
const RUN: usize = 1024;

/// A pool of threads that pack elements. They read mapped files in place, so that several threads
/// can wait for the disk at once.
pub struct Packer(ThreadPool);

impl Packer {
    /// Creates a packer with `threads` threads, including the caller's own.
    ///
    /// # Errors
    /// [`Error::Device`] if the system refuses to start a thread.
    pub fn new(threads: usize) -> Result<Packer> {
        ThreadPool::new(threads.max(1))
            .map(Packer)
            .map_err(|e| Error::Device(format!("threads for loading: {e}")))
    }

    /// Writes the elements of `part` from number `first` on, in row-major order and as `dtype`,
    /// until `to` is full.
    ///
    /// # Panics
    /// If the length of `to` is not a multiple of the element size, if the part exceeds its tensor,
    /// or if the part ends before `to` is full.
    pub fn pack(&self, part: &Part, first: usize, dtype: DType, to: &mut [u8]) {
        assert!(to.len().is_multiple_of(dtype.size()), "{} bytes of {}", to.len(), dtype.name());
        let pieces = to.len().div_ceil(PIECE);
        let next = Mutex::new(to.chunks_mut(PIECE).enumerate());
        self.0.run(pieces, |_, _| {
            let piece = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let (index, to) = piece.expect("there are as many pieces as tasks");
            pack(part, first + index * (PIECE / dtype.size()), dtype, to);
        });
    }
}

impl Packer {
    /// Writes the rows of `part` as FP8, from row `first` on, to rows of `depth` bytes until `to`
    /// is full, and the scale of each row to `scales`. Bytes beyond the part's columns are zero.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for NaN or infinity.
    ///
    /// # Panics
    /// If the part has fewer rows, or `to` and `scales` differ in their numbers of rows.
    pub fn quantize(
        &self,
        part: &Part,
        first: usize,
        depth: usize,
        to: &mut [u8],
        scales: &mut [f32],
    ) -> Result<()> {
        assert_eq!(to.len(), scales.len() * depth, "{} rows of {depth}", scales.len());
        let rows = (PIECE / depth).max(1);
        let pieces = scales.len().div_ceil(rows);
        let next = Mutex::new(to.chunks_mut(rows * depth).zip(scales.chunks_mut(rows)).enumerate());
        let failed = Mutex::new(Ok(()));
        self.0.run(pieces, |_, _| {
            let piece = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let (index, (to, scales)) = piece.expect("there are as many pieces as tasks");
            if let Err(error) = quantize(part, first + index * rows, depth, to, scales) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Packer {
    /// Calls `pack` once for each of `blocks` blocks, on all threads, with the number of the block,
    /// its share of `to`, and its share of `words`.
    ///
    /// # Errors
    /// An error of `pack`.
    ///
    /// # Panics
    /// If a length is not a multiple of the number of blocks.
    pub fn pack_blocks(
        &self,
        blocks: usize,
        to: &mut [u8],
        words: &mut [u32],
        pack: impl Fn(usize, &mut [u8], &mut [u32]) -> Result<()> + Sync,
    ) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let (bytes, count) = (to.len() / blocks, words.len() / blocks);
        assert_eq!((bytes * blocks, count * blocks), (to.len(), words.len()), "{blocks} blocks");
        let next = Mutex::new(to.chunks_exact_mut(bytes).zip(words.chunks_exact_mut(count)).enumerate());
        let failed = Mutex::new(Ok(()));
        self.0.run(blocks, |_, _| {
            let block = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let (index, (to, words)) = block.expect("there are as many blocks as tasks");
            if let Err(error) = pack(index, to, words) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packer({} threads)", self.0.threads())
    }
}

fn pack(part: &Part, first: usize, dtype: DType, to: &mut [u8]) {
    let (tensor, cols) = (&part.tensor, part.cols.len());
    let Some(stored) = tensor.encoding.dense() else { return dequantize(part, first, dtype, to) };
    let mut element = first;
    let mut rest = to;
    while !rest.is_empty() {
        let (row, col) = (element / cols, element % cols);
        let wanted = rest.len() / dtype.size();
        // Whole rows are contiguous.
        let run = if cols == tensor.cols { wanted } else { wanted.min(cols - col) };
        let start = ((part.rows.start + row) * tensor.cols + part.cols.start + col) * stored.size();
        let from = &tensor.bytes[start..start + run * stored.size()];
        let (now, later) = rest.split_at_mut(run * dtype.size());
        convert(from, stored, now, dtype);
        (rest, element) = (later, element + run);
    }
}

/// Does the same as [`pack`] for a part that is stored quantized.
fn dequantize(part: &Part, first: usize, dtype: DType, to: &mut [u8]) {
    let cols = part.cols.len();
    let mut values = [0f32; RUN];
    let mut element = first;
    let mut rest = to;
    while !rest.is_empty() {
        let (row, col) = (element / cols, element % cols);
        let values = &mut values[..(rest.len() / dtype.size()).min(cols - col).min(RUN)];
        part.read(row, col, values);
        let (now, later) = rest.split_at_mut(values.len() * dtype.size());
        narrow(values, now, dtype);
        (rest, element) = (later, element + values.len());
    }
}

fn quantize(part: &Part, first: usize, depth: usize, to: &mut [u8], scales: &mut [f32]) -> Result<()> {
    let (tensor, cols) = (&part.tensor, part.cols.len());
    let mut values = vec![0.0; cols];
    for (index, (to, scale)) in to.chunks_exact_mut(depth).zip(scales).enumerate() {
        if let Some(stored) = tensor.encoding.dense() {
            let size = stored.size();
            let start = ((part.rows.start + first + index) * tensor.cols + part.cols.start) * size;
            let from = &tensor.bytes[start..start + cols * size];
            for (values, from) in values.chunks_mut(RUN).zip(from.chunks(RUN * size)) {
                widen(from, stored, values);
            }
        } else {
            part.read_row(first + index, &mut values);
        }
        let (row, padding) = to.split_at_mut(cols);
        *scale = fp8::quantize(&values, row)?;
        padding.fill(0);
    }
    Ok(())
}

/// Converts elements from one type to another; neither side need be aligned.
fn convert(from: &[u8], source: DType, to: &mut [u8], target: DType) {
    if source == target {
        return to.copy_from_slice(from);
    }
    let mut values = [0f32; RUN];
    for (from, to) in from.chunks(RUN * source.size()).zip(to.chunks_mut(RUN * target.size())) {
        let values = &mut values[..from.len() / source.size()];
        widen(from, source, values);
        narrow(values, to, target);
    }
}

fn widen(from: &[u8], dtype: DType, values: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (value, bytes) in values.iter_mut().zip(from.chunks_exact(4)) {
                *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        DType::F16 => {
            let mut halves = [f16::ZERO; RUN];
            let halves = &mut halves[..values.len()];
            for (half, bytes) in halves.iter_mut().zip(from.chunks_exact(2)) {
                *half = f16::from_le_bytes([bytes[0], bytes[1]]);
            }
            halves.convert_to_f32_slice(values);
        }
        DType::BF16 => {
            for (value, bytes) in values.iter_mut().zip(from.chunks_exact(2)) {
                *value = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            }
        }
    }
}

fn narrow(values: &[f32], to: &mut [u8], dtype: DType) {
    match dtype {
        DType::F32 => {
            for (bytes, value) in to.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        DType::F16 => {
            let mut halves = [f16::ZERO; RUN];
            let halves = &mut halves[..values.len()];
            halves.convert_from_f32_slice(values);
            for (bytes, half) in to.chunks_exact_mut(2).zip(halves) {
                bytes.copy_from_slice(&half.to_le_bytes());
            }
        }
        DType::BF16 => {
            for (bytes, value) in to.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&bf16::from_f32(*value).to_le_bytes());
            }
        }
    }
}

/// Splits the elements of a part into ranges that fit a buffer of `bytes` bytes.
pub fn upload_ranges(part: &Part, dtype: DType, bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let (all, most) = (part.rows.len() * part.cols.len(), (bytes / dtype.size()).max(1));
    (0..all).step_by(most).map(move |first| first..all.min(first + most))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use millrace_numbers::HostTensor;
    use millrace_numbers::formats::gptq::{self, GptqTensors};
    use millrace_numbers::scales::{NumberType, Numbers};

    const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

    fn encode(values: &[f32], dtype: DType) -> Vec<u8> {
        let bytes = |value: &f32| match dtype {
            DType::F32 => value.to_le_bytes().to_vec(),
            DType::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(bytes).collect()
    }

    proptest! {
        /// Compares with a conversion element by element, for random parts, types, buffer sizes and
        /// alignments.
        #[test]
        fn packing_equals_conversion_element_by_element(
            (rows, cols) in (1usize..9, 1usize..3000),
            cut in any::<[prop::sample::Index; 4]>(),
            (source, target) in (0usize..3, 0usize..3),
            buffer in 4usize..20_000,
            skew in 0usize..4,
        ) {
            let (source, target) = (DTYPES[source], DTYPES[target]);
            let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 8191) as f32 / 64.0 - 60.0).collect();
            let stored = [vec![0; skew], encode(&values, source)].concat();
            let tensor = HostTensor::dense(source, rows, cols, Bytes::from(stored).slice(skew..));
            let range = |a: prop::sample::Index, b: prop::sample::Index, n: usize| {
                let (a, b) = (a.index(n), b.index(n));
                a.min(b)..a.max(b) + 1
            };
            let part = Part { tensor, rows: range(cut[0], cut[1], rows), cols: range(cut[2], cut[3], cols) };
            let packer = Packer::new(2).unwrap();
            let mut packed = Vec::new();
            for range in upload_ranges(&part, target, buffer) {
                let mut piece = vec![0; range.len() * target.size()];
                prop_assert!(piece.len() <= buffer);
                packer.pack(&part, range.start, target, &mut piece);
                packed.extend(piece);
            }
            let (rows, cols) = (part.rows.len(), part.cols.len());
            let want: Vec<f32> = (0..rows * cols).map(|i| part.get(i / cols, i % cols)).collect();
            prop_assert_eq!(packed, encode(&want, target));
        }
    }

    /// Integers of 4 bits whose rows are not next to each other in the file.
    #[test]
    fn stored_integers_are_converted_like_dense_weights() {
        let (rows, cols) = (16, 96);
        let random = |n: usize, salt: usize| -> Vec<u8> {
            (0..n).map(|i| (((i * 7919 + salt) * 2_654_435_761) >> 7) as u8).collect()
        };
        let scales: Vec<f32> = (0..rows * 3).map(|i| 0.01 + i as f32 / 512.0).collect();
        let tensors = GptqTensors {
            bits: 4,
            group_cols: 32,
            plus_one: true,
            qweight: random(rows * cols / 2, 1).into(),
            qzeros: random(rows * 3 / 2, 2).into(),
            scales: Numbers::new(NumberType::Dense(DType::F16), encode(&scales, DType::F16).into()).unwrap(),
            g_idx: None,
        };
        let part = Part { tensor: gptq::matrix(rows, cols, tensors).unwrap(), rows: 3..14, cols: 5..80 };
        let dense: Vec<f32> = (0..11 * 75).map(|i| part.get(i / 75, i % 75)).collect();
        assert!(dense.iter().any(|&value| value != dense[0]));
        for dtype in DTYPES {
            let packer = Packer::new(2).unwrap();
            let mut packed = vec![0; dense.len() * dtype.size()];
            packer.pack(&part, 0, dtype, &mut packed);
            assert!(packed == encode(&dense, dtype), "{dtype:?}");
            let (mut row, mut scale) = (vec![0; 80], [0.0]);
            packer.quantize(&part, 2, 80, &mut row, &mut scale).unwrap();
            let mut want = vec![0; 80];
            assert_eq!(fp8::quantize(&dense[150..225], &mut want[..75]).unwrap(), scale[0]);
            assert_eq!(row, want);
        }
    }

    #[test]
    fn all_threads_quantize_rows() {
        let (rows, cols, depth) = (5, PIECE / 2 - 10, PIECE / 2);
        let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 8191) as f32 - 4000.0).collect();
        for dtype in DTYPES {
            let stored = encode(&values, dtype);
            let tensor = HostTensor::dense(dtype, rows, cols, stored.into());
            let part = Part { tensor, rows: 1..5, cols: 3..cols };
            let (mut packed, mut scales) = (vec![1; 3 * depth], vec![0.0; 3]);
            Packer::new(3).unwrap().quantize(&part, 1, depth, &mut packed, &mut scales).unwrap();
            for (row, (packed, scale)) in packed.chunks(depth).zip(scales).enumerate() {
                let wide: Vec<f32> = (0..cols - 3).map(|col| part.get(row + 1, col)).collect();
                let mut want = vec![0; depth];
                assert_eq!(fp8::quantize(&wide, &mut want[..cols - 3]).unwrap(), scale);
                assert!(packed == want, "{dtype:?}, row {row}");
            }
        }
        let bad = encode(&[1.0, f32::NAN], DType::F32);
        let part = Part::whole(HostTensor::dense(DType::F32, 2, 1, bad.into()));
        let failed = Packer::new(2).unwrap().quantize(&part, 0, 64, &mut [0; 128], &mut [0.0; 2]);
        assert!(failed.unwrap_err().to_string().contains("NaN"));
    }

    #[test]
    fn all_threads_fill_a_buffer_of_many_pieces() {
        let values: Vec<f32> = (0..3 * PIECE / 2).map(|i| (i % 1000) as f32).collect();
        let stored = encode(&values, DType::F32);
        let part = Part::whole(HostTensor::dense(DType::F32, 3, PIECE / 2, stored.into()));
        let mut packed = vec![0; values.len() * 2];
        Packer::new(3).unwrap().pack(&part, 0, DType::BF16, &mut packed);
        assert!(packed == encode(&values, DType::BF16));
    }
}
