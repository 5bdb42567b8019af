//! The formats in which a device keeps the weights of a model.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use millrace_backend::Sizing;
use millrace_numbers::formats::awq::Awq;
use millrace_numbers::formats::bitsandbytes::Bitsandbytes;
use millrace_numbers::formats::compressed_tensors::CompressedTensors;
use millrace_numbers::formats::fp8::Fp8;
use millrace_numbers::formats::ggml::SUPER_BLOCK;
use millrace_numbers::formats::gptq::Gptq;
use millrace_numbers::{DType, IntFormat, KFormat, Part, WeightFormat};
use serde::{Deserialize, Serialize};

use super::slots::{WeightKind, WeightSlot};
use super::source::WeightError;
use super::{DecoderSpec, Model};

/// Columns of the smallest groups of integers.
const MIN_GROUP: usize = 32;

/// The formats in which a device keeps the weights of a model. Vectors are always in single
/// precision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightStorage {
    /// Element type of matrices, and on GPUs also of activations.
    pub dtype: DType,
    /// Quantization of the matrices that may be quantized, unless the checkpoint is quantized.
    pub quantize: Option<Quantize>,
    /// The name of the format of the checkpoint's quantized matrices, if it has any.
    checkpoint: Option<&'static str>,
    /// The formats of the head, if it is quantized, and of matrices that are kept as the checkpoint
    /// stores them.
    stored: Arc<BTreeMap<WeightSlot, Vec<RowsInFormat>>>,
    /// Number of quantized matrices that the device cannot keep as they are.
    converted: usize,
}

/// Successive rows of a matrix that a device keeps in one format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsInFormat {
    /// The number of rows.
    pub rows: usize,
    /// Their format.
    pub format: WeightFormat,
}

/// A value of `--quantize`: a way to quantize matrices while they are loaded, or a format that the
/// checkpoint must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantize {
    /// FP8 (e4m3): stored, or made with one scale per output feature.
    Fp8,
    /// 8-bit integers with one scale per output feature.
    Int8,
    /// 8-bit integers in groups of 32 columns (GGUF's Q8_0).
    Q8_0,
    /// 4-bit integers in groups of 32 columns (GGUF's Q4_0).
    Q4_0,
    /// 4-bit integers in groups of up to 128 columns with zero points.
    Int4,
    /// 4-bit integers in super-blocks of 256 columns (GGUF's Q4_K).
    Q4K,
    /// 5-bit integers in super-blocks of 256 columns (GGUF's Q5_K).
    Q5K,
    /// 6-bit integers in super-blocks of 256 columns (GGUF's Q6_K).
    Q6K,
    /// 4-bit codes into a table of quantiles, in groups of 64 columns, on the CPU.
    Nf4,
    /// A checkpoint of GPTQ.
    Gptq,
    /// A checkpoint of AWQ.
    Awq,
    /// A checkpoint of compressed-tensors.
    CompressedTensors,
    /// A checkpoint of bitsandbytes, or 8-bit integers as [`Quantize::Int8`].
    Bitsandbytes,
    /// A checkpoint of bitsandbytes in nf4, or made as [`Quantize::Nf4`].
    BitsandbytesNf4,
    /// A checkpoint of bitsandbytes in fp4.
    BitsandbytesFp4,
}

/// The quantization that the operator asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuantizeRequest {
    /// The format of the matrices of the layers (`--quantize`).
    pub layers: Option<Quantize>,
    /// Whether the head is never quantized (`--dense-head`).
    pub dense_head: bool,
}

impl From<Option<Quantize>> for QuantizeRequest {
    fn from(layers: Option<Quantize>) -> Self {
        QuantizeRequest { layers, dense_head: false }
    }
}

/// The reason why a value of `--quantize` cannot be used with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantizeError {
    /// The flag names another format than the checkpoint has.
    #[error(
        "--quantize {flag}, but the checkpoint is quantized already ({found}); omit the flag to serve it as it is. \
         Quantizing it again would add a second error to the first"
    )]
    AlreadyQuantized {
        /// The value of the flag.
        flag: &'static str,
        /// The format of the checkpoint.
        found: &'static str,
    },
    /// The flag names a format that only a checkpoint can have, and this one is not quantized.
    #[error(
        "--quantize {flag} reads checkpoints that are quantized so, but config.json has no quantization_config; \
         --quantize int8 or int4 quantizes while loading"
    )]
    NotQuantized {
        /// The value of the flag.
        flag: &'static str,
    },
}

/// The reason why no formats can be chosen.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The flag `--quantize` does not fit the checkpoint.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// A weight cannot be read.
    #[error(transparent)]
    Weight(#[from] WeightError),
}

impl Quantize {
    /// All values.
    pub const ALL: [Quantize; 15] = [
        Quantize::Fp8,
        Quantize::Int8,
        Quantize::Q8_0,
        Quantize::Q4_0,
        Quantize::Int4,
        Quantize::Q4K,
        Quantize::Q5K,
        Quantize::Q6K,
        Quantize::Nf4,
        Quantize::Gptq,
        Quantize::Awq,
        Quantize::CompressedTensors,
        Quantize::Bitsandbytes,
        Quantize::BitsandbytesNf4,
        Quantize::BitsandbytesFp4,
    ];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Quantize::Fp8 => Fp8::NAME,
            Quantize::Int8 => IntFormat::Int8.name(),
            Quantize::Q8_0 => IntFormat::Q8_0.name(),
            Quantize::Q4_0 => IntFormat::Q4_0.name(),
            Quantize::Int4 => IntFormat::Int4.name(),
            Quantize::Q4K => KFormat::Q4K.name(),
            Quantize::Q5K => KFormat::Q5K.name(),
            Quantize::Q6K => KFormat::Q6K.name(),
            Quantize::Nf4 => "nf4",
            Quantize::Gptq => Gptq::NAME,
            Quantize::Awq => Awq::NAME,
            Quantize::CompressedTensors => CompressedTensors::NAME,
            Quantize::Bitsandbytes => Bitsandbytes::Int8.name(),
            Quantize::BitsandbytesNf4 => Bitsandbytes::Nf4.name(),
            Quantize::BitsandbytesFp4 => Bitsandbytes::Fp4.name(),
        }
    }

    /// Returns the format of matrices that are quantized while they are loaded, if the value means
    /// this for a checkpoint that is not quantized.
    const fn format(self) -> Option<WeightFormat> {
        match self {
            Quantize::Fp8 => Some(WeightFormat::Fp8),
            Quantize::Int8 | Quantize::Bitsandbytes => Some(WeightFormat::Int(IntFormat::Int8)),
            Quantize::Q8_0 => Some(WeightFormat::Int(IntFormat::Q8_0)),
            Quantize::Q4_0 => Some(WeightFormat::Int(IntFormat::Q4_0)),
            Quantize::Int4 => Some(WeightFormat::Int(IntFormat::Int4)),
            Quantize::Q4K => Some(WeightFormat::K(KFormat::Q4K)),
            Quantize::Q5K => Some(WeightFormat::K(KFormat::Q5K)),
            Quantize::Q6K => Some(WeightFormat::K(KFormat::Q6K)),
            Quantize::Nf4 | Quantize::BitsandbytesNf4 => Some(WeightFormat::Nf4),
            Quantize::Gptq | Quantize::Awq | Quantize::CompressedTensors | Quantize::BitsandbytesFp4 => None,
        }
    }

    /// Returns the format of a head that is quantized while it is loaded. It has more bits than the
    /// layers, because the head decides which token is chosen, as in the files that llama.cpp
    /// makes.
    const fn head_format(self) -> Option<WeightFormat> {
        match self.format() {
            Some(WeightFormat::Int(_) | WeightFormat::K(_)) => Some(WeightFormat::Int(IntFormat::Q8_0)),
            _ => None,
        }
    }

    /// Returns whether the value fits a checkpoint in the format of this name.
    fn accepts(self, format: &str) -> bool {
        // All formats of bitsandbytes can be called so.
        let is_bitsandbytes = || Bitsandbytes::ALL.iter().any(|variant| variant.name() == format);
        self.name() == format || self == Quantize::Bitsandbytes && is_bitsandbytes()
    }

    /// Tells whether only the CPU multiplies by the format.
    pub const fn needs_cpu(self) -> bool {
        matches!(self, Quantize::Nf4)
    }

    /// Returns how matrices of a checkpoint are quantized while they are loaded, if they are.
    fn for_checkpoint(
        flag: Option<Quantize>,
        checkpoint: Option<&'static str>,
    ) -> Result<Option<Quantize>, QuantizeError> {
        match (flag, checkpoint) {
            (None, _) => Ok(None),
            (Some(quantize), None) if quantize.format().is_some() => Ok(Some(quantize)),
            (Some(quantize), None) => Err(QuantizeError::NotQuantized { flag: quantize.name() }),
            (Some(quantize), Some(format)) if quantize.accepts(format) => Ok(None),
            (Some(quantize), Some(format)) => {
                Err(QuantizeError::AlreadyQuantized { flag: quantize.name(), found: format })
            }
        }
    }
}

impl WeightStorage {
    /// Creates the formats of a checkpoint that is not quantized.
    pub fn new(dtype: DType, quantize: Option<Quantize>) -> Self {
        WeightStorage { dtype, quantize, checkpoint: None, stored: Arc::default(), converted: 0 }
    }

    /// Chooses the formats of `model` on `device`. Matrices that the checkpoint stores quantized
    /// are kept as they are if the device multiplies by them. Otherwise they are converted to
    /// `dtype`.
    ///
    /// # Errors
    /// If the quantization that was asked for does not fit the checkpoint, or a weight cannot be
    /// read.
    pub fn choose(
        dtype: DType,
        request: impl Into<QuantizeRequest>,
        model: &Model,
        device: &impl Sizing,
    ) -> Result<Self, StorageError> {
        let QuantizeRequest { layers, dense_head } = request.into();
        let quantize = Quantize::for_checkpoint(layers, model.quantized)?;
        let mut storage = WeightStorage { checkpoint: model.quantized, ..Self::new(dtype, quantize) };
        let spec = &model.spec;
        let head = spec.head_slot().filter(|_| !dense_head);
        if model.quantized.is_none() {
            let format = quantize.and_then(Quantize::head_format).filter(|_| device.quantizes_heads());
            let format = format.zip(head).and_then(|(format, head)| {
                let format = format.for_cols(spec.shape(head).1, dtype);
                let rows = spec.shape(head).0;
                (!matches!(format, WeightFormat::Dense(_)))
                    .then(|| (head, vec![RowsInFormat { rows, format }]))
            });
            storage.stored = Arc::new(format.into_iter().collect());
            return Ok(storage);
        }
        let is_dense = |slot| match slot {
            WeightSlot::Head => dense_head || !device.quantizes_heads(),
            WeightSlot::Embedding => head != Some(slot) || !device.quantizes_heads(),
            // Rows of tables are looked up. Matrices of single heads are always dense.
            slot => spec.is_looked_up(slot) || slot.is_of_single_heads(),
        };
        let mut stored = BTreeMap::new();
        let matrices = spec.slots().into_iter().filter(|slot| !slot.is_vector());
        for slot in matrices {
            let parts = model.weights.parts(slot)?;
            if !parts.iter().any(|part| part.tensor.encoding.is_quantized()) {
                continue;
            }
            let formats = if slot.info().per_expert {
                let rows = spec.shape(slot).0;
                device.stored_expert_format(&parts).map(|format| vec![RowsInFormat { rows, format }])
            } else {
                stored_formats(&parts, device)
            };
            match formats.filter(|_| !is_dense(slot)) {
                Some(formats) => _ = stored.insert(slot, formats),
                None => storage.converted += 1,
            }
        }
        storage.stored = Arc::new(stored);
        Ok(storage)
    }

    /// Returns the formats of the rows of the matrix `[rows, cols]` in `slot`. A file may store
    /// query, key and value, or gate and up, in different ones.
    pub fn rows(&self, slot: WeightSlot, (rows, cols): (usize, usize)) -> Vec<RowsInFormat> {
        match self.stored.get(&slot).map(Vec::as_slice) {
            Some(several @ [_, _, ..]) => several.to_vec(),
            _ => vec![RowsInFormat { rows, format: self.matrix(slot, cols) }],
        }
    }

    /// Returns the format of the matrix in `slot`, which has `cols` columns, or of its first rows:
    /// see [`WeightStorage::rows`]. A format that they do not fit is replaced, see
    /// [`WeightFormat::for_cols`].
    pub fn matrix(&self, slot: WeightSlot, cols: usize) -> WeightFormat {
        if let Some(first) = self.stored.get(&slot).and_then(|formats| formats.first()) {
            return first.format;
        }
        match self.requested(slot) {
            Some(format) => format.for_cols(cols, self.dtype),
            None => self.dtype.into(),
        }
    }

    /// Returns whether the head is the embedding of `spec`, and quantized. The rows of the
    /// embedding are then looked up as the checkpoint has them.
    pub fn quantizes_tied_head(&self, spec: &DecoderSpec) -> bool {
        spec.tied_head && self.stored.contains_key(&WeightSlot::Embedding)
    }

    /// Returns the formats of a model that has only the layers `layers` of this one, numbered from
    /// 0.
    pub fn of_layers(&self, layers: &Range<usize>) -> Self {
        let renumbered = |(&slot, formats): (&WeightSlot, &Vec<RowsInFormat>)| match slot {
            WeightSlot::Layer(index, _) if !layers.contains(&index) => None,
            WeightSlot::Layer(index, of_layer) => {
                Some((WeightSlot::Layer(index - layers.start, of_layer), formats.clone()))
            }
            slot => Some((slot, formats.clone())),
        };
        WeightStorage {
            stored: Arc::new(self.stored.iter().filter_map(renumbered).collect()),
            ..self.clone()
        }
    }

    /// Returns the format that matrices in `slot` are quantized to while they are loaded, if they
    /// are.
    fn requested(&self, slot: WeightSlot) -> Option<WeightFormat> {
        let may_quantize = matches!(slot.info().kind, WeightKind::Matrix { may_quantize: true });
        self.quantize.and_then(Quantize::format).filter(|_| may_quantize)
    }

    /// Returns the name of the format of the head of `spec`, if it is quantized.
    pub fn head_quantization(&self, spec: &DecoderSpec) -> Option<&'static str> {
        let head = spec.head_slot().filter(|_| !spec.head.is_absent);
        head.and_then(|slot| self.stored.get(&slot)?.first()).map(|first| first.format.name())
    }

    /// Returns the name of the quantization, if matrices of layers are quantized.
    pub fn quantization(&self) -> Option<&'static str> {
        self.checkpoint.or(self.quantize.map(Quantize::name))
    }

    /// Returns warnings for the operator: about the matrices of `spec` that do not have the format
    /// that was asked for, and about quantized matrices that take as much memory as dense ones.
    pub fn warnings(&self, spec: &DecoderSpec) -> Vec<String> {
        self.replacement(spec).into_iter().chain(self.conversion()).collect()
    }

    /// Says which matrices of `spec` have another format than the one that was asked for, and why.
    pub fn replacement(&self, spec: &DecoderSpec) -> Option<String> {
        let mut all = 0;
        let mut replaced: BTreeMap<(WeightFormat, usize), usize> = BTreeMap::new();
        for slot in spec.slots() {
            let Some(requested) = self.requested(slot) else { continue };
            all += 1;
            let cols = spec.shape(slot).1;
            let kept = self.matrix(slot, cols);
            if kept != requested {
                *replaced.entry((kept, cols)).or_default() += 1;
            }
        }
        let reason = |(&(kept, cols), count): (&(WeightFormat, usize), &usize)| {
            // Groups have 32 columns or more, and super-blocks eight times as many.
            let block = if matches!(kept, WeightFormat::Dense(_)) { MIN_GROUP } else { SUPER_BLOCK };
            let kept = kept.name();
            format!(
                "{count} of {all} matrices are kept as {kept}, because {cols} columns are not a multiple of {block}"
            )
        };
        let reasons: Vec<String> = replaced.iter().map(reason).collect();
        let format = self.quantize?.name();
        (!reasons.is_empty()).then(|| format!("--quantize {format}: {}", reasons.join("; ")))
    }

    fn conversion(&self) -> Option<String> {
        let (format, all) = (self.checkpoint?, self.stored.len() + self.converted);
        (self.converted > 0).then(|| {
            format!(
                "{} of {all} quantized matrices ({format}) are converted to {} while they are loaded, because this \
                 device does not multiply by them as they are stored",
                self.converted,
                self.dtype.name()
            )
        })
    }
}

/// Returns the formats in which `device` keeps all rows of `parts`, stacked, as they are stored:
/// one if it can be, and otherwise those of successive parts.
fn stored_formats(parts: &[Part], device: &impl Sizing) -> Option<Vec<RowsInFormat>> {
    let rows = |parts: &[Part]| parts.iter().map(|part| part.rows.len()).sum();
    if let Some(format) = device.stored_format(parts) {
        return Some(vec![RowsInFormat { rows: rows(parts), format }]);
    }
    let own = |part: &Part| {
        device.stored_format(std::slice::from_ref(part)).filter(|format| device.stacks(*format))
    };
    let own: Vec<WeightFormat> = parts.iter().map(own).collect::<Option<_>>()?;
    let mut formats = Vec::new();
    let mut start = 0;
    for run in own.chunk_by(|a, b| a == b) {
        let parts = &parts[start..start + run.len()];
        start += run.len();
        // Parts that have one format each may need another one together.
        let format = device.stored_format(parts).filter(|format| device.stacks(*format))?;
        formats.push(RowsInFormat { rows: rows(parts), format });
    }
    Some(formats)
}

impl From<DType> for WeightStorage {
    fn from(dtype: DType) -> Self {
        WeightStorage::new(dtype, None)
    }
}

#[cfg(test)]
mod tests {
    use millrace_backend::{KvSpec, ProductShape};
    use millrace_numbers::formats::exact_format;
    use millrace_numbers::{BlockType, Encoding, HostTensor};

    use super::*;

    #[test]
    fn the_list_of_values_is_complete_and_their_names_differ() {
        for (index, quantize) in Quantize::ALL.into_iter().enumerate() {
            assert_eq!(quantize as usize, index, "{quantize:?}");
            let named = Quantize::ALL.into_iter().filter(|other| other.name() == quantize.name());
            assert_eq!(named.count(), 1, "{quantize:?}");
        }
        assert_eq!(Quantize::ALL.last(), Some(&Quantize::BitsandbytesFp4), "the last variant is in the list");
    }

    /// A device that keeps stored blocks, and those of `Q8_0` only by themselves.
    struct Stacking;

    impl Sizing for Stacking {
        fn stored_format(&self, parts: &[Part]) -> Option<WeightFormat> {
            exact_format(parts)
        }

        fn stacks(&self, format: WeightFormat) -> bool {
            matches!(format, WeightFormat::K(_))
        }

        fn matrix_bytes(&self, _out: usize, _cols: usize, _format: WeightFormat) -> usize {
            0
        }

        fn kv_bytes(&self, _spec: &KvSpec) -> usize {
            0
        }

        fn scratch_bytes(&self, _products: &[ProductShape]) -> usize {
            0
        }
    }

    #[test]
    fn successive_parts_of_one_format_are_one_entry() {
        let part = |kind: BlockType, rows: usize| {
            let bytes = vec![0; rows * kind.bytes() * SUPER_BLOCK / kind.cols()];
            Part::whole(HostTensor {
                encoding: Encoding::Blocks(kind),
                rows,
                cols: SUPER_BLOCK,
                bytes: bytes.into(),
            })
        };
        let formats = |kinds: &[(BlockType, usize)]| {
            let parts: Vec<Part> = kinds.iter().map(|&(kind, rows)| part(kind, rows)).collect();
            let found = stored_formats(&parts, &Stacking)?;
            Some(
                found
                    .into_iter()
                    .map(|RowsInFormat { rows, format }| (rows, format.name()))
                    .collect::<Vec<_>>(),
            )
        };
        use BlockType::{Q2K, Q3K, Q4K, Q6K, Q8_0};
        assert_eq!(formats(&[(Q4K, 3), (Q4K, 5)]), Some(vec![(8, "q4_k")]));
        assert_eq!(formats(&[(Q4K, 3), (Q4K, 5), (Q6K, 2)]), Some(vec![(8, "q4_k"), (2, "q6_k")]));
        assert_eq!(formats(&[(Q3K, 1), (Q6K, 2), (Q4K, 3)]), Some(vec![(3, "q6_k"), (3, "q4_k")]));
        assert_eq!(formats(&[(Q8_0, 4)]), Some(vec![(4, "q8_0")]));
        assert_eq!(formats(&[(Q8_0, 4), (Q4K, 4)]), None, "rows that are not stacked");
        assert_eq!(formats(&[(Q2K, 4), (Q4K, 4)]), None, "rows that are not kept");
    }

    #[test]
    fn formats_follow_their_layers_into_a_part_of_the_model() {
        let (int8, slot) = (WeightFormat::Int(IntFormat::Int8), |layer| {
            WeightSlot::Layer(layer, crate::description::LayerSlot::Down)
        });
        let stored = [(slot(0), WeightFormat::Fp8), (slot(2), int8), (WeightSlot::Head, WeightFormat::Fp8)];
        let stored = stored.map(|(slot, format)| (slot, vec![RowsInFormat { rows: 64, format }]));
        let storage =
            WeightStorage { stored: Arc::new(stored.into()), ..WeightStorage::new(DType::F16, None) };
        let part = storage.of_layers(&(1..3));
        let formats = [slot(0), slot(1), WeightSlot::Head].map(|slot| part.matrix(slot, 64));
        assert_eq!(formats, [DType::F16.into(), int8, WeightFormat::Fp8]);
    }
}
