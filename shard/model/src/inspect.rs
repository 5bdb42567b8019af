//! The contents of a checkpoint and the memory that it needs, for `millrace inspect`.

use std::fmt::{self, Display, Formatter};

use millrace_backend::KvFormat;
use millrace_formats::{self as formats, Checkpoint, Source, TensorInfo};
use millrace_numbers::DType;

use crate::description::{
    Attention, DecoderSpec, LayerSpec, Model, QuantizeRequest, StorageError, WeightSlot, WeightStorage,
};
use crate::families::{self, LoadError, Overrides};
use crate::memory_plan::{self, UnpaddedDevice};
use crate::{Bytes, Count};

/// The reason why a checkpoint cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The flag `--quantize` does not fit the checkpoint, or a quantized weight cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The contents of a checkpoint, and the memory that it needs.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// Path of the checkpoint.
    pub place: String,
    /// The specification of its decoder.
    pub spec: DecoderSpec,
    /// Element type of the stored weights.
    pub stored_dtype: DType,
    /// Formats of the weights in memory.
    pub storage: WeightStorage,
    /// Format of the KV cache.
    pub kv_format: KvFormat,
    /// Number of weights.
    pub parameters: usize,
    /// Number of weights in the embedding, and in the head if it is another matrix.
    pub embedding_parameters: usize,
    /// Names and sizes in bytes of the files with weights. Empty if there is only a `config.json`.
    pub files: Vec<(String, usize)>,
    /// The stored tensors, sorted by name. They are printed if there are any.
    pub tensors: Vec<TensorInfo>,
    /// Warnings about contradictions in the files.
    pub warnings: Vec<String>,
    /// Lengths in tokens that the table of memory shows.
    pub contexts: Vec<usize>,
}

impl Inspection {
    /// Inspects `source`, which needs no weights beside its `config.json`.
    ///
    /// The memory is computed for weights of type `dtype` (if absent, the stored type), matrices of
    /// layers quantized by `quantize`, and a KV cache in `kv_format` (if absent, the type of
    /// the weights).
    ///
    /// # Errors
    /// If the model is not supported, its files are incomplete or damaged, or `quantize` does not
    /// fit the checkpoint.
    pub fn new(
        source: &Source,
        dtype: Option<DType>,
        quantize: impl Into<QuantizeRequest>,
        kv_format: Option<KvFormat>,
        overrides: &Overrides,
    ) -> Result<Self, InspectError> {
        let (model, checkpoint) = match Checkpoint::open(source) {
            Ok(checkpoint) => (families::load(source, overrides)?, Some(checkpoint)),
            Err(formats::Error::NoWeights { .. }) => (families::load_dummy(source, overrides)?, None),
            Err(error) => return Err(LoadError::from(error).into()),
        };
        Self::of_model(source, (model, checkpoint), dtype, quantize, kv_format)
    }

    /// Inspects the `config.json` of `source` as [`Inspection::new`] does, whatever weights are
    /// beside it: a download may have brought the list of their files, and not the files.
    ///
    /// # Errors
    /// If the model is not supported, or `quantize` does not fit it.
    pub fn of_configuration(
        source: &Source,
        dtype: Option<DType>,
        quantize: impl Into<QuantizeRequest>,
        kv_format: Option<KvFormat>,
        overrides: &Overrides,
    ) -> Result<Self, InspectError> {
        let model = families::load_dummy(source, overrides)?;
        Self::of_model(source, (model, None), dtype, quantize, kv_format)
    }

    fn of_model(
        source: &Source,
        (model, checkpoint): (Model, Option<Checkpoint>),
        dtype: Option<DType>,
        quantize: impl Into<QuantizeRequest>,
        kv_format: Option<KvFormat>,
    ) -> Result<Self, InspectError> {
        let matrix = model.spec.vocab * model.spec.hidden;
        let (rows, cols) = model.spec.shape(WeightSlot::PerLayerEmbedding);
        let per_layer = rows * cols;
        let warnings = model.warnings.texts(dtype).map(str::to_owned).collect();
        let dtype = dtype.unwrap_or(model.dtype);
        let storage = WeightStorage::choose(dtype, quantize, &model, &UnpaddedDevice)?;
        Ok(Inspection {
            place: source.place(),
            parameters: model.spec.parameters(),
            embedding_parameters: per_layer + if model.spec.tied_head { matrix } else { 2 * matrix },
            files: checkpoint
                .iter()
                .flat_map(Checkpoint::files)
                .map(|(name, bytes)| (name.to_owned(), bytes))
                .collect(),
            tensors: checkpoint.iter().flat_map(Checkpoint::tensors).collect(),
            kv_format: kv_format.unwrap_or(dtype.into()),
            stored_dtype: model.dtype,
            storage,
            warnings,
            contexts: contexts(&model.spec),
            spec: model.spec,
        })
    }

    /// Returns the bytes of the weights in memory: matrices in their own type, vectors in single
    /// precision.
    pub fn weight_bytes(&self) -> usize {
        memory_plan::weight_bytes(&self.spec, &self.storage, &UnpaddedDevice)
    }

    /// Returns the bytes of keys and values per token of the cache.
    pub fn kv_bytes_per_token(&self) -> usize {
        memory_plan::kv_bytes_per_token(&self.spec, self.kv_format, &UnpaddedDevice)
    }

    /// Returns the bytes of weights and cache for `batch` sequences of `context` tokens each. The
    /// workspace of a step is not included.
    pub fn memory(&self, context: usize, batch: usize) -> usize {
        self.kv_bytes_per_token()
            .saturating_mul(context)
            .saturating_mul(batch)
            .saturating_add(self.weight_bytes())
    }
}

/// Returns the context lengths of the table: the longest, a quarter of it, and so on.
fn contexts(spec: &DecoderSpec) -> Vec<usize> {
    let mut contexts: Vec<usize> =
        [64, 16, 4, 1].iter().map(|part| spec.max_positions / part).filter(|&n| n >= 256).collect();
    if contexts.is_empty() {
        contexts.push(spec.max_positions);
    }
    contexts
}

/// Describes the different kinds of heads among the layers, each with the number of its layers.
fn kinds_of_heads(spec: &DecoderSpec) -> Vec<(String, usize)> {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for of_layer in spec.layers.iter().filter_map(|layer| layer.attention.heads()) {
        let layout = of_layer.layout;
        let heads = match of_layer.latent {
            None => {
                let place = if of_layer.kv_source.is_some() { " of an earlier layer" } else { "" };
                format!("{} on {} KV heads of {}{place}", layout.heads, layout.kv_heads, layout.head_dim)
            }
            Some(latent) => {
                let (heads, key) = (layout.heads, latent.rotary_dim);
                format!("{heads} on latents of {} and a shared key of {key}", latent.rank)
            }
        };
        match kinds.iter_mut().find(|(known, _)| *known == heads) {
            Some((_, count)) => *count += 1,
            None => kinds.push((heads, 1)),
        }
    }
    kinds
}

/// Numbers of sequences that the table of memory shows.
const BATCHES: [usize; 4] = [1, 8, 32, 128];

impl Display for Inspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let spec = &self.spec;
        writeln!(f, "{}", self.place)?;
        let mut line = |name: &str, value: String| writeln!(f, "  {name:<14}{value}");
        line("family", spec.model_type.clone())?;
        let (stored, kept) = (self.stored_dtype.name(), self.storage.dtype.name());
        let mut kept = if stored == kept { stored.to_owned() } else { format!("{stored}, kept as {kept}") };
        if let Some(name) = self.storage.quantization() {
            kept += &format!(", matrices of layers as {name}");
        }
        if let Some(name) = self.storage.head_quantization(spec) {
            kept += &format!(", head as {name}");
        }
        line("element type", kept)?;
        if let Some(replacement) = self.storage.replacement(spec) {
            line("", replacement)?;
        }
        let (all, embedding) = (Count(self.parameters), Count(self.embedding_parameters));
        let tied = if spec.tied_head { "embedding, also the head" } else { "embedding and head" };
        line("parameters", format!("{all} ({embedding} in {tied})"))?;
        line("layers", format!("{} of width {}", spec.layers.len(), spec.hidden))?;
        if let Some(table) = spec.per_layer {
            line("", format!("with embeddings of {} features for each layer", table.width))?;
        }
        let kinds = kinds_of_heads(spec);
        for (index, (heads, count)) in kinds.iter().enumerate() {
            let name = if index == 0 { "heads" } else { "" };
            let place = format!(", in {count} of {} layers", spec.layers.len());
            line(name, format!("{heads}{}", if kinds.len() > 1 { &place } else { "" }))?;
        }
        let mut recurrent = spec.layers.iter().filter_map(|layer| layer.attention.recurrent());
        if let Some(layer) = recurrent.next() {
            let (count, heads) = (1 + recurrent.count(), layer.heads);
            let of_layer = match layer.is_convolution() {
                true => format!("{} channels, {} taps", layer.channels(), layer.taps),
                false => format!(
                    "{} heads of {} on {} key heads of {}, {} taps",
                    heads.heads, heads.value_dim, heads.key_heads, heads.key_dim, layer.taps
                ),
            };
            line("recurrent", format!("{of_layer}, in {count} of {} layers", spec.layers.len()))?;
            let state = memory_plan::state_bytes(spec, 1, 0, &UnpaddedDevice);
            line("", format!("{} of state per sequence", Bytes(state)))?;
        }
        if let Some(mlp) = spec.layers.iter().find_map(|layer| layer.mlp.dense()) {
            line("MLP width", mlp.width.to_string())?;
        }
        if let Some(experts) = spec.layers.iter().find_map(|layer| layer.mlp.experts()) {
            let (top_k, count) = (experts.router.top_k, experts.count());
            line("experts", format!("{top_k} of {count} of width {}", experts.width))?;
            if let Some(shared) = experts.shared {
                line("shared expert", format!("of width {}", shared.width))?;
            }
        }
        line("vocabulary", spec.vocab.to_string())?;
        line("context", format!("{} tokens", spec.max_positions))?;
        let mut windows: Vec<usize> =
            spec.layers.iter().filter_map(|layer| layer.attention.window()).collect();
        let sliding = windows.len();
        windows.dedup();
        if let Some(window) = windows.first() {
            let directions = if spec.is_bidirectional() { " in each direction" } else { "" };
            line(
                "window",
                format!("{window} tokens{directions} in {sliding} of {} layers", spec.layers.len()),
            )?;
        }
        let chunk = |layer: &LayerSpec| match layer.attention {
            Attention::Chunked { size, .. } => Some(size),
            _ => None,
        };
        let chunks: Vec<usize> = spec.layers.iter().filter_map(chunk).collect();
        if let Some(size) = chunks.first() {
            line("chunks", format!("{size} tokens in {} of {} layers", chunks.len(), spec.layers.len()))?;
        }
        for rope in &spec.ropes {
            line("rotary", rope.to_string())?;
        }
        if let Some(scale) = spec.query_scale {
            line("queries", scale.to_string())?;
        }

        if !self.warnings.is_empty() {
            writeln!(f, "\nWarnings")?;
            self.warnings.iter().try_for_each(|warning| writeln!(f, "  {warning}"))?;
        }
        self.write_files(f)?;
        self.write_memory(f)?;
        self.write_tensors(f)
    }
}

impl Inspection {
    fn write_files(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nFiles")?;
        if self.files.is_empty() {
            writeln!(f, "  no weights here")?;
        }
        let width = self.files.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, bytes) in &self.files {
            writeln!(f, "  {name:<width$}  {:>10}", Bytes(*bytes))?;
        }
        Ok(())
    }

    fn write_memory(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nMemory for weights and KV cache (what a step computes with comes on top)")?;
        writeln!(f, "  weights       {}", Bytes(self.weight_bytes()))?;
        let name = self.kv_format.name();
        writeln!(f, "  KV per token  {} as {name}", Bytes(self.kv_bytes_per_token()))?;
        write!(f, "  {:>10}", "context")?;
        for batch in BATCHES {
            write!(f, "  {:>10}", format!("batch {batch}"))?;
        }
        writeln!(f)?;
        for &context in &self.contexts {
            write!(f, "  {context:>10}")?;
            for batch in BATCHES {
                write!(f, "  {:>10}", Bytes(self.memory(context, batch)))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn write_tensors(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.tensors.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nTensors")?;
        let shape = |tensor: &TensorInfo| format!("{:?}", tensor.shape);
        let names = self.tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
        let shapes = self.tensors.iter().map(|tensor| shape(tensor).len()).max().unwrap_or(0);
        for tensor in &self.tensors {
            let (name, dtype, bytes) = (&tensor.name, tensor.dtype.to_string(), Bytes(tensor.bytes));
            let (shape, file) = (shape(tensor), &tensor.file);
            writeln!(f, "  {name:<names$}  {dtype:<4}  {shape:<shapes$}  {bytes:>10}  {file}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::description::Quantize;

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden").join(name)
    }

    fn inspect(
        source: &Source,
        dtype: Option<DType>,
        quantize: impl Into<QuantizeRequest>,
        kv_format: Option<KvFormat>,
    ) -> Inspection {
        Inspection::new(source, dtype, quantize, kv_format, &Overrides::default()).unwrap()
    }

    #[test]
    fn the_numbers_match_the_files() {
        let found = inspect(&Source::Directory(golden("llama_sharded")), None, None, None);
        // The index states this number.
        assert_eq!(found.parameters, 18_656);
        assert_eq!(found.tensors.iter().map(|tensor| tensor.bytes).sum::<usize>(), 74_624);
        assert_eq!(found.weight_bytes(), 74_624);
        assert_eq!(found.embedding_parameters, 2 * 61 * 32);
        let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        assert_eq!(found.files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), files);
        // Two layers, keys and values, two heads of 8 features, 4 bytes each.
        assert_eq!(found.kv_bytes_per_token(), 2 * 2 * 2 * 8 * 4);
        assert_eq!(found.memory(10, 3), 74_624 + 256 * 30);

        let tied = Source::Directory(golden("llama_tied"));
        let half = inspect(&tied, None, None, Some(DType::F16.into()));
        assert_eq!((half.kv_bytes_per_token(), half.embedding_parameters), (128, 97 * 32));
        // Each of the 8 heads of all layers has a scale beside its 8 bytes.
        let bytes = inspect(&tied, None, None, Some(KvFormat::Int8));
        assert_eq!(bytes.kv_bytes_per_token(), 64 + 8 * 4);
        assert!(bytes.to_string().contains("96 B as int8\n"), "{bytes}");
        // The cache has the type of the weights. Vectors keep theirs.
        let all_half = inspect(&tied, Some(DType::F16), None, None);
        let vectors = 5 * 32;
        assert_eq!(all_half.kv_bytes_per_token(), 128);
        assert_eq!(all_half.weight_bytes(), (all_half.parameters - vectors) * 2 + vectors * 4);
        assert!(all_half.to_string().contains("element type  float32, kept as float16\n"));

        let small = inspect(&tied, Some(DType::BF16), Some(Quantize::Fp8), None);
        assert!(small.weight_bytes() < all_half.weight_bytes());
        assert!(small.to_string().contains("kept as bfloat16, matrices of layers as fp8\n"));
    }

    #[test]
    fn every_format_is_named_and_takes_less_memory() {
        // Matrices of 128 and of 384 columns, and of 512 in all.
        let demo = Source::Directory(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo"));
        let bytes = |quantize: Option<Quantize>| {
            let found = inspect(&demo, Some(DType::BF16), quantize, None);
            if let Some(quantize) = quantize {
                let head =
                    if [Quantize::Fp8, Quantize::Nf4].contains(&quantize) { "" } else { ", head as q8_0" };
                let kept = format!("matrices of layers as {}{head}\n", quantize.name());
                assert!(found.to_string().contains(&kept), "{found}");
            }
            found.weight_bytes()
        };
        let dense = bytes(None);
        let eight = [Quantize::Int8, Quantize::Fp8, Quantize::Q8_0, Quantize::Q6K, Quantize::Q5K]
            .map(Some)
            .map(bytes);
        let four = [Quantize::Int4, Quantize::Nf4, Quantize::Q4_0, Quantize::Q4K].map(Some).map(bytes);
        assert!(eight.into_iter().max() < Some(dense) && four.into_iter().max() < eight.into_iter().min());
        // These replace formats of super-blocks, which no matrix of this model fits.
        assert_eq!((eight[3], eight[4], four[3]), (eight[2], eight[2], four[2]));
    }

    #[test]
    fn formats_that_do_not_fit_are_explained() {
        let source = Source::Directory(golden("mistral_sliding"));
        let text = inspect(&source, Some(DType::BF16), Some(Quantize::Q6K), None).to_string();
        let line = ", head as q8_0\n                --quantize q6_k: 2 of 8 matrices are kept as bfloat16, because 44 columns are \
                    not a multiple of 32; 6 of 8 matrices are kept as q8_0, because 32 columns are not a multiple \
                    of 256\n";
        assert!(text.contains(&format!("matrices of layers as q6_k{line}")), "{text}");
    }

    #[test]
    fn a_configuration_alone_can_be_inspected() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(golden("qwen3/config.json"), folder.path().join("config.json")).unwrap();
        let found = inspect(&Source::Directory(folder.path().to_owned()), None, None, None);
        assert!(found.tensors.is_empty() && found.files.is_empty());
        let text = found.to_string();
        assert!(text.contains("no weights here") && !text.contains("Tensors"), "{text}");
        assert!(
            Inspection::new(
                &Source::Directory(folder.path().join("none")),
                None,
                None,
                None,
                &Overrides::default()
            )
            .is_err()
        );
    }

    #[test]
    fn kinds_of_heads_are_listed() {
        let text = inspect(&Source::Directory(golden("gemma4_text")), None, None, None).to_string();
        for expected in [
            "  heads         4 on 2 KV heads of 8, in 2 of 3 layers\n                4 on 1 KV heads of 16, in 1 of 3 layers\n",
            "  rotary        16 features, base 500, the first 4 of 8 pairs rotated\n",
        ] {
            assert!(text.contains(expected), "{text}\nshould contain\n{expected}");
        }
    }

    #[test]
    fn what_layers_read_beside_the_residual_stream_is_listed() {
        let found = inspect(&Source::Directory(golden("gemma4_e2b")), None, None, None);
        let text = found.to_string();
        for expected in [
            "5 of width 16\n                with embeddings of 6 features for each layer\n",
            "4 on 1 KV heads of 8, in 2 of 5 layers\n",
            "4 on 1 KV heads of 8 of an earlier layer, in 1 of 5 layers\n",
        ] {
            assert!(text.contains(expected), "{text}\nshould contain\n{expected}");
        }
        // The head is the embedding, and each of the 53 tokens has an embedding for each of 5
        // layers.
        assert_eq!(found.embedding_parameters, 53 * 16 + 53 * 5 * 6);
        // Two layers with a window have a cache, and one without.
        assert_eq!(found.kv_bytes_per_token(), 2 * (2 * 8 + 16) * 4);
    }

    #[test]
    fn windows_of_encoders_reach_both_ways() {
        let source = Source::Directory(golden("../golden-encoders/gemma3_both_ways"));
        let text = inspect(&source, None, None, None).to_string();
        assert!(text.contains("  window        5 tokens in each direction in 2 of 3 layers\n"), "{text}");
    }

    #[test]
    fn the_text_shows_the_important_facts() {
        let source = Source::Directory(golden("mistral_sliding"));
        let text = inspect(&source, None, None, None).to_string();
        for expected in [
            "  family        mistral\n",
            "  element type  float32\n",
            "  heads         4 on 2 KV heads of 8\n",
            "  MLP width     44\n",
            "  window        11 tokens in 2 of 2 layers\n",
            "  rotary        8 features, base 10000, not scaled\n",
            "  KV per token  256 B as float32\n",
            "  model.layers.1.self_attn.k_proj.weight          F32   [16, 32]",
        ] {
            assert!(text.contains(expected), "{text}\nshould contain\n{expected}");
        }
    }
}
