//! The weights of a decoder in a checkpoint. All families use this reader.

use std::collections::HashSet;

use millrace_formats::{Checkpoint, DType as StoredDType, Tensor};
use millrace_numbers::experts::{ExpertColumns, ExpertRows};
use millrace_numbers::formats::{Scheme, tensor_names};
use millrace_numbers::{DType, Encoding, HostTensor, Part};

use super::names::{Names, Piece, StackedExperts, StoredOrder};
use super::quantization::{self, ModuleTensors};
use crate::description::{DecoderSpec, TensorPlace, WeightError, WeightKind, WeightSlot, WeightSource};

/// Ends of the names of masks, which old versions stored with the weights.
const MASKS: [&str; 3] = [".attn.bias", ".attention.bias", ".masked_bias"];
/// Number of unused tensors that a warning names.
const NAMED: usize = 3;
/// Rows of this length in bytes span several pages.
const LONG_ROW: usize = 16 << 10;

/// The weights of a checkpoint, under the names of a family.
pub(super) struct StoredWeights {
    checkpoint: Checkpoint,
    spec: DecoderSpec,
    names: Names,
    /// The prefix of the names of this checkpoint's layers.
    layers: String,
    /// The meaning of quantized tensors, if there are any.
    scheme: Option<Scheme>,
}

impl StoredWeights {
    /// Checks that every weight of `spec` exists with its shape and a usable type, and that no
    /// weight would be ignored.
    pub(super) fn new(
        checkpoint: Checkpoint,
        spec: DecoderSpec,
        names: Names,
        scheme: Option<Scheme>,
    ) -> Result<Self, WeightError> {
        let mut weights = StoredWeights { checkpoint, spec, names, layers: names.layers.to_owned(), scheme };
        if let Some(layers) = weights.resolved_layers() {
            weights.layers = layers;
        }
        let mut used = HashSet::new();
        for slot in weights.spec.slots() {
            for piece in weights.pieces(slot) {
                let tensor = weights.tensor(&piece)?;
                if let (None, Some(module)) = (tensor.encoding.dense(), piece.module()) {
                    used.extend(tensor_names().map(|end| format!("{module}.{end}")));
                }
                used.extend(quantization::expert_tensors(&piece.tensor));
                used.insert(piece.tensor);
            }
        }
        if let Some(types) = weights.token_types() {
            weights.tensor(&types)?;
            used.insert(types.tensor);
        }
        used.extend(weights.unread_keys_and_values());
        // Nothing but a part of the checkpoint is read for a head that predicts further tokens.
        if names.mtp_layer.is_none() {
            weights.check_unused(&used)?;
        }
        Ok(weights)
    }

    /// Returns the pieces that, stacked, are the weight for `slot`.
    fn pieces(&self, slot: WeightSlot) -> Vec<Piece> {
        if slot == WeightSlot::SecondType {
            return self.token_types().into_iter().collect();
        }
        let stacked = self.names.stacked_piece(&self.spec, slot);
        let stacked = stacked.map(|piece| Piece { tensor: self.resolve(&piece.tensor), ..piece });
        match stacked.filter(|piece| self.checkpoint.contains(&piece.tensor)) {
            Some(piece) => vec![piece],
            None => {
                let mut pieces = self.names.pieces(&self.spec, slot);
                let has_first =
                    |pieces: &[Piece]| pieces.first().is_some_and(|piece| self.has(&piece.tensor));
                if !has_first(&pieces) {
                    let usual = self.names.usual_pieces(&self.spec, slot);
                    if has_first(&usual) {
                        pieces = usual;
                    }
                }
                for piece in &mut pieces {
                    piece.tensor = self.resolve(&piece.tensor);
                    if self.is_by_output(piece) {
                        piece.order = StoredOrder::RowMajor;
                    }
                }
                pieces
            }
        }
    }

    /// Returns whether this checkpoint stores the experts of a piece by output although the
    /// family's are by input.
    fn is_by_output(&self, piece: &Piece) -> bool {
        self.names.experts == StackedExperts::ByInput
            && matches!(piece.order, StoredOrder::Experts(_))
            && self.checkpoint.find(&piece.tensor).is_some_and(|tensor| *tensor.shape == *piece.shape)
    }

    /// Returns the names of the keys and values of layers that read the cache of another layer.
    /// Checkpoints store them, and nothing reads them.
    fn unread_keys_and_values(&self) -> Vec<String> {
        let layers = self.spec.layers.iter().enumerate();
        let readers = layers
            .filter(|(_, layer)| layer.attention.heads().is_some_and(|heads| heads.kv_source.is_some()));
        let mut names = Vec::new();
        for name in readers.flat_map(|(index, _)| self.names.keys_and_values(index)) {
            let name = self.resolve(&name);
            if let Some(module) = name.strip_suffix(".weight") {
                names.extend(tensor_names().map(|end| format!("{module}.{end}")));
            }
            names.push(name);
        }
        names
    }

    /// Returns the table of token types, if the model has one.
    fn token_types(&self) -> Option<Piece> {
        let mut types = self.names.token_types(&self.spec)?;
        types.tensor = self.resolve(&types.tensor);
        Some(types)
    }

    /// Returns the weight to whose rows the first token type is added: the positions, or the
    /// embedding if there are none.
    fn typed_slot(&self) -> WeightSlot {
        match self.spec.embedding.positions {
            Some(_) => WeightSlot::Positions,
            None => WeightSlot::Embedding,
        }
    }

    /// Returns the name under which this checkpoint has the tensor `name`.
    fn resolve(&self, name: &str) -> String {
        self.names.resolve(name, |name| self.exists(name))
    }

    /// Returns whether this checkpoint has the tensor `name`, under this name or another one.
    fn has(&self, name: &str) -> bool {
        self.exists(&self.resolve(name))
    }

    fn exists(&self, name: &str) -> bool {
        self.checkpoint.contains(name) || quantization::is_stored(&self.checkpoint, name)
    }

    /// Returns the prefix of the names of layers, if the first layer has a weight.
    fn resolved_layers(&self) -> Option<String> {
        let slot = self.spec.slots().into_iter().find(|slot| slot.layer().is_some())?;
        let usual = self.names.pieces(&self.spec, slot).into_iter().next()?.tensor;
        let rest = usual.strip_prefix(self.names.layers)?;
        self.resolve(&usual).strip_suffix(rest).map(str::to_owned)
    }

    /// Refuses tensors of layers, and biases of used weights, that the decoder does not use: they
    /// belong to a model that this configuration does not describe.
    fn check_unused(&self, used: &HashSet<String>) -> Result<(), WeightError> {
        let mut ignored = Vec::new();
        for tensor in self.checkpoint.tensors() {
            let name = tensor.name;
            // Old versions stored constants with the weights. A tied head is sometimes stored as
            // well.
            if used.contains(&name)
                || name.ends_with("rotary_emb.inv_freq")
                || name.ends_with("rotary_pos_emb.inv_freq")
                || name == self.resolve(&self.names.head())
                || MASKS.iter().any(|end| name.ends_with(end))
                || self.is_needless(&name)
                || self.is_of_later_layer(&name)
                || self.names.is_of_mtp_module(&name)
            {
                continue;
            }
            let is_left_out = self.names.left_out.iter().any(|part| name.contains(part));
            let of_layer = name.starts_with(&self.layers) && !is_left_out;
            let of_used =
                name.strip_suffix(".bias").is_some_and(|base| used.contains(&format!("{base}.weight")));
            if of_layer || of_used {
                return Err(WeightError::Unused { file: self.path_of(&name), tensor: name });
            }
            ignored.push(name);
        }
        if !ignored.is_empty() {
            let count = ignored.len();
            let more = if count > NAMED { " …" } else { "" };
            ignored.sort_unstable();
            ignored.truncate(NAMED);
            tracing::warn!("{count} tensors of the checkpoint are not used: {}{more}", ignored.join(", "));
        }
        Ok(())
    }

    /// Returns whether a tensor belongs to a layer after the last one, which the family ignores.
    fn is_of_later_layer(&self, name: &str) -> bool {
        let index = name.strip_prefix(&self.layers).and_then(|rest| rest.split('.').next());
        let index = index.and_then(|index| index.parse::<usize>().ok());
        self.names.has_later_layers && index.is_some_and(|index| index >= self.spec.layers.len())
    }

    /// Returns whether matrices are stored as blocks of GGML.
    pub(super) fn has_blocks(&self) -> bool {
        self.checkpoint.tensors().any(|tensor| matches!(tensor.dtype, StoredDType::Blocks(_)))
    }

    /// Returns whether a tensor that a tool for quantization adds changes no results: scales of
    /// cached keys and values that are not quantized, and biases of zeros.
    fn is_needless(&self, name: &str) -> bool {
        let zeros =
            || self.checkpoint.find(name).is_some_and(|bias| bias.bytes.iter().all(|&byte| byte == 0));
        self.scheme.is_some()
            && ([".k_scale", ".v_scale", ".kv_scale"].iter().any(|end| name.ends_with(end))
                || name.ends_with(".bias") && zeros())
    }

    /// Returns the parts of a weight as they are stored, without what is added or divided when they
    /// are loaded.
    pub(super) fn stored_parts(&self, slot: WeightSlot) -> Result<Vec<Part>, WeightError> {
        self.checkpoint.check_readable()?;
        self.pieces(slot).into_iter().map(|piece| self.part(slot, piece)).collect()
    }

    /// Returns the table of token types, if the model has one.
    pub(super) fn token_type_part(&self) -> Result<Option<Part>, WeightError> {
        self.token_types().map(|types| self.part(WeightSlot::Embedding, types)).transpose()
    }

    fn part(&self, slot: WeightSlot, piece: Piece) -> Result<Part, WeightError> {
        let tensor = self.tensor(&piece)?;
        let (part, parts) = slot.part_of_row();
        // A vector is one row, whose elements are the output features.
        let (rows, cols) = match slot.is_vector() {
            true => (0..1, piece.rows),
            false => (piece.rows, part * tensor.cols / parts..(part + 1) * tensor.cols / parts),
        };
        Ok(Part { tensor, rows, cols })
    }

    /// Returns the stored tensor of a piece, as the kernels take it.
    fn tensor(&self, piece: &Piece) -> Result<HostTensor, WeightError> {
        if let (Some(scheme), Some(name), &[rows, cols]) = (&self.scheme, piece.module(), &piece.shape[..]) {
            let prefix = format!("{name}.");
            let module = ModuleTensors { checkpoint: &self.checkpoint, prefix: &prefix, rows, cols };
            if let Some(tensor) = module.read(scheme)? {
                return Ok(tensor);
            }
        }
        if let (Some(scheme), StoredOrder::Experts(order), &[experts, rows, cols]) =
            (&self.scheme, piece.order, &piece.shape[..])
        {
            let (checkpoint, prefix) = (&self.checkpoint, &*piece.tensor);
            let all = ModuleTensors { checkpoint, prefix, rows: experts * rows, cols };
            if let Some(tensor) = all.read_experts(scheme, order)? {
                return Ok(tensor);
            }
        }
        let tensor = self.stored(piece)?;
        match piece.order {
            StoredOrder::RowMajor => {}
            StoredOrder::Transposed => {
                return transpose(&tensor).ok_or_else(|| self.element_type(piece, &tensor));
            }
            StoredOrder::Experts(order) => {
                return self.experts(piece, &tensor, order);
            }
            StoredOrder::TransposedHead(head) => {
                return transposed_head(&tensor, head).ok_or_else(|| self.element_type(piece, &tensor));
            }
        }
        let mut host = host_tensor(&tensor).ok_or_else(|| self.element_type(piece, &tensor))?;
        if piece.shape.len() == 1 {
            (host.rows, host.cols) = (1, host.rows * host.cols);
        }
        Ok(host)
    }

    /// Returns the weights of all experts, which are stored by input feature.
    fn experts(
        &self,
        piece: &Piece,
        tensor: &Tensor<'_>,
        order: ExpertRows,
    ) -> Result<HostTensor, WeightError> {
        let host = host_tensor(tensor);
        let Some((dtype, host)) = host.and_then(|host| Some((host.encoding.dense()?, host))) else {
            return Err(self.element_type(piece, tensor));
        };
        let built = match piece.shape[..] {
            [experts, rows, cols] => {
                let encoding = Encoding::ExpertColumns(ExpertColumns { dtype, rows: order });
                HostTensor::new(encoding, experts * rows, cols, host.bytes)
            }
            _ => Ok(expert_vector(&host, dtype, order)),
        };
        built.map_err(|error| WeightError::Quantized {
            file: self.path_of(&piece.tensor),
            tensor: piece.tensor.clone(),
            reason: format!("cannot be used: {error}"),
        })
    }

    /// Returns the stored tensor of a piece, with its shape checked.
    fn stored(&self, piece: &Piece) -> Result<Tensor<'_>, WeightError> {
        let mut shape = piece.shape.clone();
        match (piece.order, &mut shape[..]) {
            (StoredOrder::Transposed, _) => shape.reverse(),
            (StoredOrder::Experts(_), [_, rows, cols]) => std::mem::swap(rows, cols),
            _ => {}
        }
        // A vector may be stored with an axis for heads, or as the weights of a convolution.
        if let ([len], Some(tensor)) = (&shape[..], self.checkpoint.find(&piece.tensor))
            && matches!(*tensor.shape, [] | [_, _] | [_, 1, _] | [1, 1, _, 1])
            && tensor.shape.iter().product::<usize>() == *len
        {
            return Ok(tensor);
        }
        Ok(self.checkpoint.tensor(&piece.tensor, &shape)?)
    }

    fn element_type(&self, piece: &Piece, tensor: &Tensor<'_>) -> WeightError {
        WeightError::ElementType {
            file: self.path_of(&piece.tensor),
            tensor: piece.tensor.clone(),
            dtype: tensor.dtype.to_string(),
        }
    }

    fn path_of(&self, tensor: &str) -> String {
        self.checkpoint.path_of(tensor).unwrap_or_default().to_owned()
    }
}

/// Transposes a stored matrix. Returns `None` if the kernels cannot load its element type.
fn transpose(tensor: &Tensor<'_>) -> Option<HostTensor> {
    let stored = host_tensor(tensor)?;
    let (rows, cols, size) = (stored.cols, stored.rows, stored.encoding.dense()?.size());
    let mut bytes = vec![0; stored.bytes.len()];
    for (col, from) in stored.bytes.chunks_exact((rows * size).max(1)).enumerate() {
        for (row, number) in from.chunks_exact(size).enumerate() {
            let at = (row * cols + col) * size;
            bytes[at..at + size].copy_from_slice(number);
        }
    }
    Some(HostTensor { rows, cols, bytes: bytes.into(), ..stored })
}

/// Transposes the share of one head of a tensor `[heads, rows, cols]`, which may be quantized.
/// Returns `None` if the kernels cannot load its element type.
fn transposed_head(tensor: &Tensor<'_>, head: usize) -> Option<HostTensor> {
    let (stored, &[_, rows, cols]) = (host_tensor(tensor)?, tensor.shape) else { return None };
    let dtype = stored.encoding.dense().unwrap_or(DType::F32);
    let (part, mut row, mut numbers) = (Part::whole(stored), vec![0.0; cols], vec![0.0; rows * cols]);
    for index in 0..rows {
        part.read_row(head * rows + index, &mut row);
        row.iter().enumerate().for_each(|(col, x)| numbers[col * rows + index] = *x);
    }
    let mut bytes = Vec::with_capacity(numbers.len() * dtype.size());
    numbers.iter().for_each(|x| dtype.push(*x, &mut bytes));
    Some(HostTensor::dense(dtype, cols, rows, bytes.into()))
}

/// Returns a number for each feature of all experts, `[1, features]`, in the order of the decoder.
fn expert_vector(tensor: &HostTensor, dtype: DType, order: ExpertRows) -> HostTensor {
    let (len, size) = (tensor.rows * tensor.cols, dtype.size());
    let numbers = (0..len).map(|feature| order.stored(feature) * size);
    let bytes: Vec<u8> = numbers.flat_map(|at| &tensor.bytes[at..at + size]).copied().collect();
    HostTensor::dense(dtype, 1, len, bytes.into())
}

/// Divides each row of a matrix by its length. The numbers keep their type.
fn with_unit_rows(tensor: &HostTensor) -> HostTensor {
    let part = Part::whole(tensor.clone());
    let dtype = tensor.encoding.dense().unwrap_or(DType::F32);
    let (mut row, mut bytes) = (vec![0.0; tensor.cols], Vec::new());
    for index in 0..tensor.rows {
        part.read_row(index, &mut row);
        let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
        row.iter().for_each(|x| dtype.push((f64::from(*x) / length) as f32, &mut bytes));
    }
    HostTensor::dense(dtype, tensor.rows, tensor.cols, bytes.into())
}

/// Adds the first row of `table` to each row of a matrix. The sums are of type `dtype`.
fn with_first_row_added(tensor: &HostTensor, table: &HostTensor, dtype: DType) -> HostTensor {
    let (part, mut first) = (Part::whole(tensor.clone()), vec![0.0; table.cols]);
    Part::whole(table.clone()).read_row(0, &mut first);
    let (mut row, mut bytes) = (vec![0.0; tensor.cols], Vec::new());
    for index in 0..tensor.rows {
        part.read_row(index, &mut row);
        row.iter().zip(&first).for_each(|(x, y)| dtype.push(x + y, &mut bytes));
    }
    HostTensor::dense(dtype, tensor.rows, tensor.cols, bytes.into())
}

/// Returns the second row of a table minus its first row, as a vector in single precision.
fn second_row_minus_first(table: &HostTensor) -> HostTensor {
    let part = Part::whole(table.clone());
    let [mut first, mut second] = [0, 1].map(|_| vec![0.0; table.cols]);
    part.read_row(0, &mut first);
    part.read_row(1, &mut second);
    let bytes: Vec<u8> = second.iter().zip(&first).flat_map(|(x, y)| (x - y).to_le_bytes()).collect();
    HostTensor::dense(DType::F32, 1, table.cols, bytes.into())
}

/// Returns the scales of a norm that are not stored.
fn unit_scales(len: usize) -> Part {
    let bytes = 1f32.to_le_bytes().repeat(len);
    Part::whole(HostTensor::dense(DType::F32, 1, len, bytes.into()))
}

/// Converts a stored tensor. Returns `None` if the kernels cannot load its element type.
pub fn host_tensor(tensor: &Tensor<'_>) -> Option<HostTensor> {
    let encoding = match tensor.dtype {
        dtype if *dtype == StoredDType::F32 => Encoding::Dense(DType::F32),
        dtype if *dtype == StoredDType::F16 => Encoding::Dense(DType::F16),
        dtype if *dtype == StoredDType::BF16 => Encoding::Dense(DType::BF16),
        StoredDType::Blocks(blocks) => Encoding::Blocks(*blocks),
        _ => return None,
    };
    let (rows, cols) = match *tensor.shape {
        [rows, cols] => (rows, cols),
        // The matrices of all experts, one after the other.
        [experts, rows, cols] => (experts * rows, cols),
        // The decoder has only matrices and vectors.
        _ => (1, tensor.shape.iter().product()),
    };
    Some(HostTensor { encoding, rows, cols, bytes: tensor.shared_bytes() })
}

impl WeightSource for StoredWeights {
    fn parts(&self, slot: WeightSlot) -> Result<Vec<Part>, WeightError> {
        // A truncated file reads as zeros. There is no point in loading the rest of it.
        self.checkpoint.check_readable()?;
        let pieces = self.pieces(slot);
        if pieces.is_empty() && slot.info().kind == WeightKind::NormScale {
            return Ok(vec![unit_scales(self.spec.shape(slot).1)]);
        }
        let part = |piece: Piece| {
            if slot == WeightSlot::SecondType {
                return Ok(Part::whole(second_row_minus_first(&self.tensor(&piece)?)));
            }
            let mut part = self.part(slot, piece)?;
            if slot == WeightSlot::Head && self.spec.head.unit_rows {
                part.tensor = with_unit_rows(&part.tensor);
            }
            if slot == self.typed_slot()
                && let Some(types) = self.token_types()
            {
                // A narrow embedding stays narrow: it is rounded, as transformers rounds the sum.
                let dtype = match slot {
                    WeightSlot::Embedding => part.tensor.encoding.dense().unwrap_or(DType::F32),
                    _ => DType::F32,
                };
                part.tensor = with_first_row_added(&part.tensor, &self.tensor(&types)?, dtype);
            }
            Ok(part)
        };
        pieces.into_iter().map(part).collect()
    }

    fn tensor_of(&self, part: &Part) -> Option<TensorPlace> {
        let bytes = part.tensor.bytes.as_ptr_range();
        let is_same = |name: &String| {
            self.checkpoint.find(name).is_some_and(|tensor| tensor.bytes.as_ptr_range() == bytes)
        };
        let tensor = self.checkpoint.tensors().map(|tensor| tensor.name).find(is_same)?;
        Some(TensorPlace { file: self.path_of(&tensor), tensor })
    }

    fn will_need(&self, part: &Part) {
        let encoding = &part.tensor.encoding;
        let Some(row) = encoding.row_bytes(part.tensor.cols) else {
            // The numbers of a row are all over the tensor.
            return self.checkpoint.will_need(&part.tensor.bytes);
        };
        let rows = &part.tensor.bytes[part.rows.start * row..part.rows.end * row];
        // If a rank's columns are a small part of long rows, the pages between them are not read.
        if part.cols.len() == part.tensor.cols || row < LONG_ROW {
            self.checkpoint.will_need(rows);
        } else {
            let at = |col: usize| encoding.row_bytes(col).unwrap_or_default();
            let cols = at(part.cols.start)..at(part.cols.end);
            rows.chunks_exact(row).for_each(|row| self.checkpoint.will_need(&row[cols.clone()]));
        }
    }

    fn place(&self) -> String {
        self.checkpoint.place()
    }

    fn identity(&self) -> String {
        self.checkpoint.identity().to_owned()
    }

    fn check_readable(&self) -> Result<(), WeightError> {
        Ok(self.checkpoint.check_readable()?)
    }

    fn verify(&self) -> Result<(), WeightError> {
        Ok(self.checkpoint.verify()?)
    }
}
