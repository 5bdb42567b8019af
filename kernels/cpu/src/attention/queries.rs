//! The queries in the form that the scores are computed from.

use super::super::simd::Simd;
use super::super::step::ProductStep;
use super::super::tile::Tiles;
use super::job::{HeadDims, Tile, Work};

/// Packs the queries in tiles of `[words][height]`.
///
/// # Safety
/// The machine has the instruction set, and the working memory is as large as `scratch` says.
#[inline(always)]
pub(super) unsafe fn pack<S: Simd, F: ProductStep>(tile: &Tile<'_>, work: Work) {
    let HeadDims { key: dim, query_stride, .. } = tile.dims();
    let words = dim.div_ceil(F::INPUTS);
    let tiles = Tiles::new(tile.queries.len(), S::ROWS);
    for rows in (0..tiles.count()).map(|tile| tiles.rows(tile)) {
        for i in rows.clone() {
            let (token, head) = tile.token_and_head(tile.queries.start + i);
            let query = &tile.qkv[token * query_stride + head * dim..][..dim];
            // SAFETY: a tile of height h takes h * words words. The values' place holds a row of
            // words, and is not in use yet.
            unsafe {
                let from = if F::INPUTS == 2 {
                    round::<S>(query, work.acc.cast());
                    work.acc.cast::<u32>()
                } else {
                    query.as_ptr().cast()
                };
                let to = work.q.add(rows.start * words + i - rows.start);
                for k in 0..words {
                    *to.add(k * rows.len()) = *from.add(k);
                }
            }
        }
    }
}

/// Rounds `x` to bf16. The last word ends with a zero if one number is missing.
#[inline(always)]
unsafe fn round<S: Simd>(x: &[f32], to: *mut u16) {
    let whole = x.len() / S::LANES * S::LANES;
    // SAFETY: the caller guarantees the instruction set, and room for whole vectors.
    unsafe {
        for at in (0..whole).step_by(S::LANES) {
            S::store_bf16(to.add(at), S::load(x.as_ptr().add(at)));
        }
        if whole < x.len() {
            S::store_bf16(to.add(whole), S::load_first(x.as_ptr().add(whole), x.len() - whole));
        }
    }
}
