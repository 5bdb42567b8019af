//! Writes a file of llama2.c: a Llama in single precision, or in 8 bits.

use std::collections::BTreeMap;
use std::path::Path;

use millrace_formats::{Llama2cItem, Llama2cModel, TensorInfo};
use millrace_numbers::DType;
use serde_json::Value;

use super::error::ConvertError;
use super::model::{ConvertReport, Model, continued};
use super::new_file::{FilePart, NewFile};
use super::tensors::{self, RowType, Rows};
use crate::partial::{Job, Partial, ResultKind};

/// The epsilon of norms and the base of the rotation, which the format fixes.
const EPSILON: f64 = 1e-5;
const ROPE_BASE: f64 = 10_000.0;

pub(super) fn write(
    model: &Model<'_>,
    place: &Path,
    job: &Job,
    version: u32,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport, ConvertError> {
    if let Some(method) = model.quantization() {
        return Err(model.quantized(method));
    }
    let described = described(model, version)?;
    let items = described.items();
    let infos = tensors_of(model, &items)?;
    let name = |item: &Llama2cItem| match item {
        Llama2cItem::Floats { name, .. } | Llama2cItem::Groups { name, .. } => name.clone(),
        Llama2cItem::Bytes(_) => "the table of the rotation".to_owned(),
    };
    let parts = items.iter().map(|item| FilePart { name: name(item), bytes: item.bytes() }).collect();
    let partial = Partial::open(place, ResultKind::File, job)?;
    let mut file = NewFile::create(partial, &described.header(), parts, progress)?;
    let mut notes = vec![
        "the format has no tokenizer and no configuration: put tokenizer.json beside the file".to_owned(),
    ];
    notes.extend(continued(file.part(), items.len()));
    for item in items.iter().skip(file.part()) {
        match item {
            Llama2cItem::Bytes(bytes) => file.write(bytes)?,
            Llama2cItem::Floats { name, .. } | Llama2cItem::Groups { name, .. } => {
                let Some(info) = infos.get(name) else { continue };
                tensor(model, info, item, &mut file)?;
            }
        }
        model.checkpoint.check_readable()?;
        file.end_part()?;
    }
    model.checkpoint.verify()?;
    file.complete()?;
    let bytes = items.iter().map(Llama2cItem::bytes).sum();
    Ok(ConvertReport { tensors: infos.len(), bytes, notes })
}

/// Returns the description of the file.
///
/// # Errors
/// The first thing about the model that the format cannot express.
fn described(model: &Model<'_>, version: u32) -> Result<Llama2cModel, ConvertError> {
    let text = |key: &str| model.config.get(key).and_then(Value::as_str);
    let number = |key: &str| model.config.get(key).and_then(Value::as_f64);
    let model_type = text("model_type").unwrap_or_default();
    if !["llama", "mistral"].contains(&model_type) {
        return Err(
            model.unsupported(format!("llama2.c has models of llama and mistral, not of {model_type}"))
        );
    }
    let positions = model.count("max_position_embeddings")?;
    if number("sliding_window").is_some_and(|window| window > 0.0 && window < positions as f64) {
        return Err(model.unsupported("its layers have a sliding window"));
    }
    if text("hidden_act").is_some_and(|name| name != "silu") {
        return Err(model.unsupported("its MLP has another activation than silu"));
    }
    let scaling = ["rope_scaling", "rope_parameters"].map(|key| model.config.get(key));
    let of_scaling = |key: &str| scaling.iter().flatten().find_map(|scaling| scaling.get(key));
    let kind = of_scaling("rope_type").or_else(|| of_scaling("type")).and_then(Value::as_str);
    if let Some(kind) = kind.filter(|&kind| kind != "default") {
        return Err(model.unsupported(format!("its rotation is scaled ({kind})")));
    }
    let base = number("rope_theta").or_else(|| of_scaling("rope_theta").and_then(Value::as_f64));
    if base.is_some_and(|base| base != ROPE_BASE) {
        return Err(model.unsupported(format!("the base of its rotation is not {ROPE_BASE}")));
    }
    let epsilon = number("rms_norm_eps").unwrap_or(1e-6);
    if (epsilon / EPSILON - 1.0).abs() > 1e-6 {
        return Err(
            model.unsupported(format!("its norms have an epsilon of {epsilon}, and not of {EPSILON}"))
        );
    }
    let (dim, heads) = (model.count("hidden_size")?, model.count("num_attention_heads")?);
    if model.head_dim()? * heads != dim {
        return Err(model.unsupported("its heads do not have as many features together as a token"));
    }
    if number("partial_rotary_factor").is_some_and(|share| share != 1.0) {
        return Err(model.unsupported("only a part of each head is rotated"));
    }
    let described = Llama2cModel {
        dim,
        hidden: model.count("intermediate_size")?,
        layers: model.count("num_hidden_layers")?,
        heads,
        kv_heads: model.count("num_key_value_heads").unwrap_or(heads),
        vocab: model.count("vocab_size")?,
        positions,
        shared: model.is_head_tied(),
        version,
    };
    described.check().map_err(|reason| model.unsupported(reason))?;
    Ok(described)
}

/// Returns the stored tensors by their names. The file has a place for each of them.
fn tensors_of(
    model: &Model<'_>,
    items: &[Llama2cItem],
) -> Result<BTreeMap<String, TensorInfo>, ConvertError> {
    let mut infos: BTreeMap<String, TensorInfo> =
        model.checkpoint.tensors().map(|info| (info.name.clone(), info)).collect();
    // A tied head is the embedding, and the frequencies of old checkpoints follow from the
    // configuration.
    let is_tied = model.is_head_tied();
    let follows =
        |name: &String| name.ends_with("rotary_emb.inv_freq") || (name == "lm_head.weight" && is_tied);
    infos.retain(|name, _| !follows(name));
    let has_place = |name: &String| {
        items.iter().any(|item| match item {
            Llama2cItem::Floats { name: found, .. } | Llama2cItem::Groups { name: found, .. } => {
                found == name
            }
            Llama2cItem::Bytes(_) => false,
        })
    };
    if let Some(name) = infos.keys().find(|name| !has_place(name)) {
        return Err(model.unsupported(format!("llama2.c has no place for its tensor {name}")));
    }
    for item in items {
        let (Llama2cItem::Floats { name, .. } | Llama2cItem::Groups { name, .. }) = item else { continue };
        let shape = match item {
            Llama2cItem::Groups { shape, .. } => shape.to_vec(),
            Llama2cItem::Floats { shape, .. } => shape.clone(),
            Llama2cItem::Bytes(_) => continue,
        };
        if infos.get(name).is_none_or(|info| info.shape != shape) {
            return Err(model.unsupported(format!("its tensor {name} is not {shape:?}")));
        }
    }
    Ok(infos)
}

/// Writes a tensor.
fn tensor(
    model: &Model<'_>,
    info: &TensorInfo,
    item: &Llama2cItem,
    file: &mut NewFile<'_>,
) -> Result<(), ConvertError> {
    let order = match model.is_interleaved() {
        true => None,
        false => model.order(&info.name, info.shape.first().copied().unwrap_or(0), true)?,
    };
    let rows = order.map_or(Rows::All, Rows::Heads);
    let stored = model.checkpoint.tensor(&info.name, &info.shape)?;
    let &Llama2cItem::Groups { group, shape: [count, cols], .. } = item else {
        let to = RowType::Dense(DType::F32);
        return tensors::convert(&info.name, &stored, rows, to, &mut |bytes| file.write(bytes));
    };
    // The scales of all groups follow the codes of all groups.
    let mut scales = Vec::with_capacity(count * (cols / group) * size_of::<f32>());
    let mut codes = Vec::with_capacity(cols);
    tensors::numbers(&info.name, &stored, rows, &mut |row| {
        codes.clear();
        for numbers in row.chunks_exact(group) {
            let largest = numbers.iter().fold(0f32, |largest, number| largest.max(number.abs()));
            if numbers.iter().any(|number| !number.is_finite()) {
                return Err(
                    model.unsupported(format!("its tensor {} has weights that are no numbers", info.name))
                );
            }
            let scale = largest / 127.0;
            let code = |number: &f32| (number / scale).round_ties_even() as i8;
            codes.extend(numbers.iter().map(|number| code(number).cast_unsigned()));
            scales.extend(scale.to_le_bytes());
        }
        file.write(&codes)
    })?;
    file.write(&scales)
}
