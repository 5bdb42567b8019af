//! Copies of whole blocks of a KV cache, as bytes.
//!
//! Each array of a cache has the blocks as its first dimension, so a block is one piece of each.

use super::kv::{BytePages, Cache, Kv, Pages};
use super::simd::Element;

impl<T: Element> Pages<T> {
    fn arrays(&self) -> [&[u8]; 2] {
        [self.k.bytes(), self.v.bytes()]
    }

    fn arrays_mut(&mut self) -> [&mut [u8]; 2] {
        [self.k.bytes_mut(), self.v.bytes_mut()]
    }
}

impl Cache {
    /// Returns the bytes of all arrays; an array that the format lacks is empty.
    fn arrays(&self) -> [&[u8]; 4] {
        let [k, v] = match self {
            Cache::F32(pages) => pages.arrays(),
            Cache::F16(pages) => pages.arrays(),
            Cache::BF16(pages) | Cache::Bf16Pairs(pages) => pages.arrays(),
            Cache::Int8(pages) => pages.bytes.arrays(),
        };
        match self {
            Cache::Int8(pages) => [k, v, pages.key_scales.bytes(), pages.value_scales.bytes()],
            _ => [k, v, &[], &[]],
        }
    }

    fn arrays_mut(&mut self) -> [&mut [u8]; 4] {
        let [k, v] = match self {
            Cache::F32(pages) => pages.arrays_mut(),
            Cache::F16(pages) => pages.arrays_mut(),
            Cache::BF16(pages) | Cache::Bf16Pairs(pages) => pages.arrays_mut(),
            Cache::Int8(BytePages { bytes, key_scales, value_scales }) => {
                let [k, v] = bytes.arrays_mut();
                return [k, v, key_scales.bytes_mut(), value_scales.bytes_mut()];
            }
        };
        [k, v, &mut [], &mut []]
    }
}

impl Kv {
    /// Returns the bytes of one block.
    pub(super) fn block_bytes(&self) -> usize {
        self.cache.arrays().iter().map(|array| array.len() / self.spec.blocks.max(1)).sum()
    }

    /// Copies a block to `bytes`.
    pub(super) fn read_block(&self, block: usize, mut bytes: &mut [u8]) {
        assert!(block < self.spec.blocks && bytes.len() == self.block_bytes(), "a block and its bytes");
        for array in self.cache.arrays() {
            let size = array.len() / self.spec.blocks;
            let (piece, rest) = bytes.split_at_mut(size);
            piece.copy_from_slice(&array[block * size..][..size]);
            bytes = rest;
        }
    }

    /// Replaces a block by `bytes`.
    pub(super) fn write_block(&mut self, block: usize, mut bytes: &[u8]) {
        assert!(block < self.spec.blocks && bytes.len() == self.block_bytes(), "a block and its bytes");
        for array in self.cache.arrays_mut() {
            let size = array.len() / self.spec.blocks;
            let (piece, rest) = bytes.split_at(size);
            array[block * size..][..size].copy_from_slice(piece);
            bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_backend::{KvFormat, KvSpec};

    use super::*;

    fn bytes(seed: usize, count: usize) -> Vec<u8> {
        (0..count).map(|index| (index * 31 + seed * 7 + index / 256) as u8).collect()
    }

    #[test]
    fn a_block_is_copied_whole_and_alone_in_every_format() {
        for format in KvFormat::ALL {
            for pairs in [false, true] {
                let spec = KvSpec { heads: 3, block_size: 16, blocks: 5, key_dim: 7, value_dim: 9, format };
                let mut kv = Kv::new(spec, pairs).unwrap();
                let count = kv.block_bytes();
                assert_eq!(count * spec.blocks, Kv::bytes(&spec, pairs), "{format:?}");
                (0..spec.blocks).for_each(|block| kv.write_block(block, &bytes(block, count)));
                kv.write_block(2, &bytes(9, count));
                for block in 0..spec.blocks {
                    let mut read = vec![0; count];
                    kv.read_block(block, &mut read);
                    let expected = bytes(if block == 2 { 9 } else { block }, count);
                    assert!(read == expected, "block {block} as {format:?}");
                }
                assert!(
                    kv.cache
                        .arrays()
                        .iter()
                        .all(|array| array.iter().any(|&byte| byte != 0) || array.is_empty())
                );
            }
        }
    }
}
