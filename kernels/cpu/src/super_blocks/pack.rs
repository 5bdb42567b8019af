//! Weights in super-blocks, in the layout that the product reads.
//!
//! A panel holds `width` outputs and is one sequential stream of super-blocks. A super-block has a
//! header, and then the codes of its sub-blocks. Codes are vectors of four bytes for each output,
//! as the instructions for dot products want them.
//!
//! - `Q4_K`: the header is `scale` and `min` (f16) `[2][width]`, the scales `[8][width]` and the
//!   minima `[2][width][4]`. Codes are bytes `[32][width][4]`, whose lower halves are the first
//!   four of eight columns and whose upper halves are the other four.
//! - `Q5_K`: as `Q4_K`, but each sub-block has `[5][width][4]` bytes. Those of the fifth vector
//!   have the fifth bits of 32 columns: bit `i` of byte `j` belongs to column `4 * i + j`.
//! - `Q6_K`: the header is `scale` (f16) `[width]` and the scales `[16][width]`. Each sub-block has
//!   `[3][width][4]` bytes: the lower four bits of the codes as for `Q4_K`, and the upper two bits
//!   of 16 columns, of which columns `4 * i` to `4 * i + 3` are in bits `2 * i` and `2 * i + 1`.
//!
//! Missing outputs of the last panel are zeros.

use std::sync::{Mutex, PoisonError};

use half::f16;
use millrace_backend::{Error, Result};
use millrace_numbers::formats::ggml::{KFormat, SUPER_BLOCK, SuperBlock};

use super::super::cache::Packing;
use super::super::memory::{Memory, Shared};
use super::super::quant::RowContents;
use super::super::simd::{Extension, Kernel, Simd, Target};

/// Panels of super-blocks.
#[derive(Debug)]
pub(crate) struct KPanels {
    pub(super) format: KFormat,
    pub(super) cols: usize,
    width: usize,
    panel_bytes: usize,
    data: Memory<u8>,
}

/// The contents of a row: its super-blocks, or its weights, which are quantized next.
#[derive(Debug)]
pub(crate) struct RowBlocks {
    pub(crate) blocks: Vec<SuperBlock>,
    pub(crate) weights: Vec<f32>,
}

/// Returns the bytes of the header of a super-block per output.
pub(super) const fn header_bytes(format: KFormat) -> usize {
    match format {
        KFormat::Q4K | KFormat::Q5K => 4 + 8 + 8,
        KFormat::Q6K => 2 + 16,
    }
}

/// Returns the bytes of a super-block per output.
const fn block_bytes(format: KFormat) -> usize {
    let codes = match format {
        KFormat::Q4K => SUPER_BLOCK / 2,
        KFormat::Q5K => SUPER_BLOCK / 2 + SUPER_BLOCK / 8,
        KFormat::Q6K => SUPER_BLOCK / 2 + SUPER_BLOCK / 4,
    };
    header_bytes(format) + codes
}

/// Writes the super-block of output `lane` to the `width` super-blocks at `to`.
fn put(format: KFormat, to: &mut [u8], width: usize, lane: usize, block: &SuperBlock) {
    let mut put = |at: usize, bytes: &[u8]| to[at..at + bytes.len()].copy_from_slice(bytes);
    let number = |x: f32| f16::from_f32(x).to_ne_bytes();
    let codes = header_bytes(format) * width;
    put(2 * lane, &number(block.scale));
    if format.has_minima() {
        put(2 * (width + lane), &number(block.min));
        for (s, scale) in block.scales[..8].iter().enumerate() {
            put((4 + s) * width + lane, &[scale.cast_unsigned()]);
        }
        for (at, four) in block.mins.as_chunks::<4>().0.iter().enumerate() {
            put(12 * width + (at * width + lane) * 4, four);
        }
    }
    match format {
        KFormat::Q4K => {
            for (at, eight) in block.codes.as_chunks::<8>().0.iter().enumerate() {
                put(codes + (at * width + lane) * 4, &low_bits(eight));
            }
        }
        KFormat::Q5K => {
            for (s, columns) in block.codes.as_chunks::<32>().0.iter().enumerate() {
                let vector = |v: usize| codes + ((5 * s + v) * width + lane) * 4;
                for (v, eight) in columns.as_chunks::<8>().0.iter().enumerate() {
                    put(vector(v), &low_bits(eight));
                }
                let fifth = |j| (0..8).map(|i: usize| columns[4 * i + j] >> 4 << i).sum();
                put(vector(4), &std::array::from_fn::<u8, 4, _>(fifth));
            }
        }
        KFormat::Q6K => {
            for (s, scale) in block.scales.iter().enumerate() {
                put((2 + s) * width + lane, &[scale.cast_unsigned()]);
            }
            for (s, columns) in block.codes.as_chunks::<16>().0.iter().enumerate() {
                let vector = |v: usize| codes + ((3 * s + v) * width + lane) * 4;
                for (v, eight) in columns.as_chunks::<8>().0.iter().enumerate() {
                    put(vector(v), &low_bits(eight));
                }
                let upper = |i| (0..4).map(|four: usize| columns[4 * four + i] >> 4 << (2 * four)).sum();
                put(vector(2), &std::array::from_fn::<u8, 4, _>(upper));
            }
        }
    }
}

/// Writes the super-blocks of output `lane` to a panel.
fn put_row(format: KFormat, blocks: &[SuperBlock], panel: &mut [u8], width: usize, lane: usize) {
    let places = panel.chunks_exact_mut(block_bytes(format) * width);
    places.zip(blocks).for_each(|(to, block)| put(format, to, width, lane, block));
}

/// Returns the four lower bits of eight codes.
fn low_bits(codes: &[u8; 8]) -> [u8; 4] {
    std::array::from_fn(|i| codes[i] & 15 | codes[i + 4] << 4)
}

impl KPanels {
    /// Packs a matrix `[out, cols]`, of which `read(row, contents)` reads one row. Weights are
    /// quantized.
    ///
    /// # Errors
    /// As [`KFormat::check_cols`], [`KFormat::quantize`] and `read`, and [`Error::OutOfMemory`].
    pub(crate) fn pack(
        (out, cols): (usize, usize),
        format: KFormat,
        target: Target,
        packing: Packing<'_>,
        read: impl Fn(usize, &mut RowBlocks) -> Result<RowContents> + Sync,
    ) -> Result<Self> {
        format.check_cols(cols)?;
        let width = target.panel_width();
        let panel_bytes = cols / SUPER_BLOCK * block_bytes(format) * width;
        let panels = out.div_ceil(width);
        let mut data: Memory<u8> = Memory::zeroed(panels.saturating_mul(panel_bytes), "weights")?;
        if packing.load(&mut [&mut data]) {
            return Ok(KPanels { format, cols, width, panel_bytes, data });
        }
        let shared = Shared::new(&mut data);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        packing.pool.run(panels, |p, _| {
            // SAFETY: panel p belongs to this task alone.
            let panel = unsafe { shared.slice(p * panel_bytes, panel_bytes) };
            let rows = p * width..out.min((p + 1) * width);
            let mut contents = RowBlocks { blocks: Vec::new(), weights: vec![0.0; cols] };
            for (lane, row) in rows.enumerate() {
                let packed = read(row, &mut contents).and_then(|kind| {
                    let RowBlocks { blocks, weights } = &contents;
                    if kind == RowContents::Codes {
                        put_row(format, blocks, panel, width, lane);
                        return Ok(());
                    }
                    target.dispatch(PackRow { format, values: weights, panel, width, lane })
                });
                if let Err(error) = packed {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => {
                packing.keep(&mut [&mut data]);
                Ok(KPanels { format, cols, width, panel_bytes, data })
            }
        }
    }

    /// Returns the bytes of a packed matrix `[out, cols]`.
    pub(crate) fn bytes(out: usize, cols: usize, format: KFormat, width: usize) -> usize {
        format.bytes(out.next_multiple_of(width), cols)
    }

    /// Returns the start of super-block `block` of panel `p`.
    pub(super) fn block(&self, p: usize, block: usize) -> *const u8 {
        self.data[p * self.panel_bytes + block * block_bytes(self.format) * self.width..].as_ptr()
    }

    /// Returns the start of panel `p`.
    pub(super) fn panel(&self, p: usize) -> *const u8 {
        self.data[p * self.panel_bytes..].as_ptr()
    }
}

/// The quantization and packing of one row of a panel. It is a kernel only so that compilers
/// vectorize its loops for the instruction set of the machine: the codes are the same on all.
struct PackRow<'a> {
    format: KFormat,
    values: &'a [f32],
    panel: &'a mut [u8],
    width: usize,
    lane: usize,
}

impl Kernel for PackRow<'_> {
    const USES: Extension = Extension::None;
    type Output = Result<()>;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Result<()> {
        let PackRow { format, values, panel, width, lane } = self;
        let blocks = panel.chunks_exact_mut(block_bytes(format) * width);
        for (to, values) in blocks.zip(values.as_chunks::<SUPER_BLOCK>().0) {
            put(format, to, width, lane, &format.quantize(values)?);
        }
        Ok(())
    }
}
