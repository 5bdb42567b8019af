//! Describes files of all versions for a program that writes them.

use super::MAGIC;
use super::layout::{HEADER, Item, MAX_SIZES, NAMES, Sizes, Version};

/// The base of the frequencies of the rotation, which the format fixes.
const BASE: f64 = 10_000.0;

/// A file that will be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Llama2cModel {
    /// Features of the residual stream.
    pub dim: usize,
    /// Features of the MLP.
    pub hidden: usize,
    /// The number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// The longest sequence.
    pub positions: usize,
    /// Whether the head is the embedding.
    pub shared: bool,
    /// The version: 0, 1, or 2 for 8 bits.
    pub version: u32,
}

/// A part of a file after its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Llama2cItem {
    /// A tensor of this name in single precision, of `shape`.
    Floats {
        /// The name in Hugging Face layout.
        name: String,
        /// Length of each axis.
        shape: Vec<usize>,
    },
    /// A matrix as bytes, and then the scales of its groups in single precision.
    Groups {
        /// The name in Hugging Face layout.
        name: String,
        /// Length of each axis.
        shape: [usize; 2],
        /// Successive elements that share a scale. A row is a whole number of groups.
        group: usize,
    },
    /// These bytes.
    Bytes(Vec<u8>),
}

impl Llama2cItem {
    /// Returns the length in the file.
    pub fn bytes(&self) -> usize {
        match self {
            Llama2cItem::Floats { shape, .. } => shape.iter().product::<usize>() * size_of::<f32>(),
            Llama2cItem::Groups { shape: [rows, cols], group, .. } => {
                rows * cols + rows * (cols / group) * size_of::<f32>()
            }
            Llama2cItem::Bytes(bytes) => bytes.len(),
        }
    }
}

impl Llama2cModel {
    /// Checks that the format can hold these sizes.
    ///
    /// # Errors
    /// A sentence that names the first size that it cannot hold.
    pub fn check(&self) -> Result<(), String> {
        let sizes =
            [self.dim, self.hidden, self.layers, self.heads, self.kv_heads, self.vocab, self.positions];
        for ((size, limit), name) in sizes.into_iter().zip(MAX_SIZES).zip(NAMES) {
            if size == 0 || size as u64 > limit {
                return Err(format!("{name} would be {size}, and must be from 1 to {limit}"));
            }
        }
        if !self.dim.is_multiple_of(2 * self.heads) || !self.heads.is_multiple_of(self.kv_heads) {
            let Llama2cModel { dim, heads, kv_heads, .. } = self;
            return Err(format!("{dim} features are no whole heads for {heads} heads on {kv_heads}"));
        }
        Ok(())
    }

    /// Returns the elements that share a scale: the largest power of two up to 64 that divides all
    /// rows, in version 2.
    fn group(&self) -> Option<usize> {
        let fits = |group: &usize| self.dim.is_multiple_of(*group) && self.hidden.is_multiple_of(*group);
        (self.version == 2).then(|| [64, 32, 16, 8, 4, 2].into_iter().find(fits).unwrap_or(1))
    }

    fn sizes(&self) -> Sizes {
        let Llama2cModel { dim, hidden, layers, heads, kv_heads, vocab, positions, shared, .. } = *self;
        Sizes { dim, hidden, layers, heads, kv_heads, vocab, positions, shared, group: self.group() }
    }

    /// Returns the bytes before the first tensor. [`check`](Self::check) has accepted the sizes.
    pub fn header(&self) -> Vec<u8> {
        let Llama2cModel { dim, hidden, layers, heads, kv_heads, vocab, positions, shared, .. } = *self;
        // `check` has bounded the sizes.
        let word = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        let mut words = [dim, hidden, layers, heads, kv_heads, vocab, positions].map(word);
        if self.version == 0 {
            // A negative vocabulary says that the head is a matrix of its own.
            words[5] *= if shared { 1 } else { -1 };
            return words.into_iter().flat_map(i32::to_le_bytes).collect();
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(words.into_iter().flat_map(i32::to_le_bytes));
        bytes.push(shared.into());
        if let Some(group) = self.group() {
            bytes.extend(word(group).to_le_bytes());
        }
        bytes.resize(HEADER as usize, 0);
        bytes
    }

    /// Returns the parts after the header in their order.
    pub fn items(&self) -> Vec<Llama2cItem> {
        let version = if self.version == 0 { Version::Legacy } else { Version::Versioned };
        let items = self.sizes().items(version).into_iter().map(|item| match (item, self.group()) {
            (Item::Vector { name, len }, _) => Llama2cItem::Floats { name, shape: vec![len] },
            (Item::Matrix { name, rows, cols }, None) => {
                Llama2cItem::Floats { name, shape: vec![rows, cols] }
            }
            (Item::Matrix { name, rows, cols }, Some(group)) => {
                Llama2cItem::Groups { name, shape: [rows, cols], group }
            }
            (Item::Rotation { positions, pairs }, _) => Llama2cItem::Bytes(rotation(positions, pairs)),
        });
        items.collect()
    }
}

/// Returns the cosines and then the sines of all angles, which programs of the first version read.
fn rotation(positions: usize, pairs: usize) -> Vec<u8> {
    let angle = |index: usize| {
        let (position, pair) = (index / pairs, index % pairs);
        position as f64 * BASE.powf(-(pair as f64) / pairs as f64)
    };
    let cosines = (0..positions * pairs).map(|index| angle(index).cos());
    let sines = (0..positions * pairs).map(|index| angle(index).sin());
    cosines.chain(sines).flat_map(|number| (number as f32).to_le_bytes()).collect()
}
