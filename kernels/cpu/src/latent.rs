//! The work before attention over latents: rotation, and the write of latents to the cache.

use millrace_backend::{LatentPrologue, LatentSpec};

use super::kv::{Cache, Kv, Place, WriteKv};
use super::memory::Shared;
use super::prologue::rotate;
use super::queue::Queue;
use super::simd::{Extension, Kernel, Simd};
use super::{Buf, Cpu};

impl Cpu {
    /// Rotates queries and latents of the step, and stores the latents.
    pub(super) fn store_latents(
        &self,
        step: &Queue,
        (queries, latents): (&mut Buf, &mut Buf),
        prologue: &LatentPrologue<'_, Vec<f32>>,
        kv: &mut Kv,
    ) {
        let (dim, size) = (kv.spec.key_dim, kv.spec.block_size);
        step.check_blocks(kv.spec.blocks, kv.spec.block_size);
        assert_eq!((kv.spec.heads, kv.spec.value_dim), (1, 0), "a cache of latents");
        assert!(queries.cols.is_multiple_of(dim) && latents.cols == dim, "columns of queries and latents");
        let rope = prologue.rope;
        assert!(rope.rotary_dim <= dim && rope.rotary_dim.is_multiple_of(2), "rotated features");
        match &mut kv.cache {
            Cache::F32(pages) => {
                self.write_latents(step, (queries, latents), prologue, (size, pages.writer()))
            }
            Cache::F16(pages) => {
                self.write_latents(step, (queries, latents), prologue, (size, pages.writer()))
            }
            Cache::BF16(pages) | Cache::Bf16Pairs(pages) => {
                self.write_latents(step, (queries, latents), prologue, (size, pages.writer()));
            }
            Cache::Int8(_) => unreachable!("a cache of latents is not int8; this is a bug"),
        }
    }

    fn write_latents(
        &self,
        step: &Queue,
        (queries, latents): (&mut Buf, &mut Buf),
        prologue: &LatentPrologue<'_, Vec<f32>>,
        (size, kv): (usize, impl WriteKv),
    ) {
        let (n, cols, dim) = (step.tokens.len(), queries.cols, latents.cols);
        let (queries, latents) = (Shared::new(queries.rows_mut(n)), Shared::new(latents.rows_mut(n)));
        self.for_rows(n, prologue.rope.rotary_dim * (cols / dim) + 4 * dim, |t| {
            let (position, blocks) = step.place(t);
            let at = Place { block: blocks[position / size], slot: position % size, head: 0 };
            // SAFETY: row t of both belongs to this task alone.
            let (queries, latent) = unsafe { (queries.slice(t * cols, cols), latents.slice(t * dim, dim)) };
            self.target.dispatch(Token { queries, latent, prologue, position, at, kv });
        });
    }
}

/// Checks the operands of attention over latents.
pub(super) fn check_attention(step: &Queue, queries: &Buf, kv: &Kv, spec: &LatentSpec, out: &Buf) {
    let &LatentSpec { heads, key_dim, value_dim, .. } = spec;
    step.check_blocks(kv.spec.blocks, kv.spec.block_size);
    let found = (kv.spec.heads, kv.spec.key_dim, kv.spec.value_dim);
    assert_eq!(found, (1, key_dim, 0), "a cache of latents");
    assert!(heads > 0 && value_dim <= key_dim, "values among the features of keys");
    assert_eq!((queries.cols, out.cols), (heads * key_dim, heads * value_dim), "columns of the attention");
}

/// The prologue of one token.
struct Token<'a, W> {
    /// `[heads, key_dim]`
    queries: &'a mut [f32],
    latent: &'a mut [f32],
    prologue: &'a LatentPrologue<'a, Vec<f32>>,
    position: usize,
    at: Place,
    kv: W,
}

impl<W: WriteKv> Kernel for Token<'_, W> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Token { queries, latent, prologue, position, at, kv } = self;
        let &LatentPrologue { rope, query_scale } = prologue;
        queries.chunks_exact_mut(latent.len()).for_each(|head| rotate(head, rope, position));
        if let Some(scale) = query_scale {
            let scale = scale[position];
            queries.iter_mut().for_each(|x| *x *= scale);
        }
        rotate(latent, rope, position);
        // SAFETY: the block is inside the cache, and only this task writes the place of its token.
        unsafe { kv.write(at, latent, &[]) };
    }
}
