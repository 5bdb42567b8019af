//! The work between the projection and attention: head norms, rotation, and the write of keys and
//! values to the cache.

use millrace_backend::{Prologue, QkvLayout, RopeSpec, RopeStyle};

use super::kv::{Place, WriteKv};
use super::norms::norm_part;
use super::simd::{Extension, Kernel, Simd};

/// The prologue of one token.
pub(super) struct Token<'a, W> {
    /// The token's row of the projection.
    pub(super) qkv: &'a mut [f32],
    pub(super) prologue: &'a Prologue<'a, Vec<f32>>,
    pub(super) position: usize,
    /// The positions on the axes of a rotation that has two.
    pub(super) axes: [usize; 2],
    /// The block that holds the position.
    pub(super) block: u32,
    /// The position's place in the block.
    pub(super) slot: usize,
    pub(super) kv: W,
}

impl<W: WriteKv> Kernel for Token<'_, W> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let QkvLayout { heads, kv_heads, head_dim } = self.prologue.layout;
        let (qk, values) = self.qkv.split_at_mut((heads + kv_heads) * head_dim);
        for (h, head) in qk.chunks_exact_mut(head_dim).enumerate() {
            if let Some(norms) = self.prologue.head_norm {
                let norm = if h < heads { &norms.q } else { &norms.k };
                // SAFETY: the caller guarantees the instruction set.
                unsafe { norm_part::<S>(head, norm, 0) };
            }
            if let Some(rope) = self.prologue.rope {
                if rope.two_axes {
                    let (first, second) = head.split_at_mut(rope.rotary_dim);
                    rotate(first, rope, self.axes[0]);
                    rotate(second, rope, self.axes[1]);
                } else {
                    rotate(head, rope, self.position);
                }
            }
            if let Some(scale) = self.prologue.query_scale.filter(|_| h < heads) {
                let scale = scale[self.position];
                head.iter_mut().for_each(|x| *x *= scale);
            }
        }
        let keys = qk[heads * head_dim..].chunks_exact(head_dim);
        for (head, (key, value)) in keys.zip(values.chunks_exact(head_dim)).enumerate() {
            let at = Place { block: self.block, slot: self.slot, head };
            // SAFETY: the block is inside the cache, and only this task writes the place of its
            // token.
            unsafe { self.kv.write(at, key, value) };
        }
    }
}

#[inline(always)]
pub(super) fn rotate(head: &mut [f32], rope: &RopeSpec<Vec<f32>>, position: usize) {
    let half = rope.rotary_dim / 2;
    let angles = position * half..(position + 1) * half;
    let (cos, sin) = (&rope.cos[angles.clone()], &rope.sin[angles]);
    match rope.style {
        RopeStyle::Half => {
            let (first, rest) = head.split_at_mut(half);
            let pairs = first.iter_mut().zip(&mut rest[..half]);
            for ((x, y), (c, s)) in pairs.zip(cos.iter().zip(sin)) {
                (*x, *y) = (*x * c - *y * s, *y * c + *x * s);
            }
        }
        RopeStyle::Interleaved => {
            for (pair, (c, s)) in head.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
                let (x, y) = (pair[0], pair[1]);
                (pair[0], pair[1]) = (x * c - y * s, y * c + x * s);
            }
        }
    }
}
