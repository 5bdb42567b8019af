//! Writes a GGUF file of a Llama, a Mistral, or a Qwen 2 or 3.

use std::path::Path;

use millrace_formats::vocabulary::TokenizerData;
use millrace_formats::{
    GgufTensor, GgufType, GgufValue, Source, TensorInfo, gguf_header, gguf_padding, gguf_tensor_name,
};
use millrace_numbers::DType;
use serde_json::Value;

use super::error::ConvertError;
use super::model::{ConvertReport, GgufKind, Model, continued};
use super::new_file::{FilePart, NewFile};
use super::tensors::{self, BLOCK, RowType, Rows};
use super::tokenizer::{self, ModelTokenizer};
use crate::partial::{Job, Partial, ResultKind};
use crate::vectors::gguf_pooling;

/// A tensor of the new file, and the stored one that it is made from.
struct Planned {
    info: TensorInfo,
    new: GgufTensor,
}

pub(super) fn write(
    model: &Model<'_>,
    place: &Path,
    job: &Job,
    kind: GgufKind,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport, ConvertError> {
    if let Some(method) = model.quantization() {
        return Err(model.quantized(method));
    }
    let architecture = architecture(model)?;
    let is_llama = architecture == "llama";
    let planned = plan(model, kind)?;
    let (mut keys, divisors) = keys(model, architecture)?;
    let (pooling, mut notes) = match model.stored_pooling() {
        Some(number) => (Some(number), Vec::new()),
        None => gguf_pooling(model.source),
    };
    if let Some(number) = pooling {
        keys.push((format!("{architecture}.pooling_type"), GgufValue::U32(number as u32)));
    }
    tokenizer_keys(model, &mut keys, &mut notes)?;
    let mut headers: Vec<GgufTensor> = planned.iter().map(|planned| planned.new.clone()).collect();
    if let Some(divisors) = &divisors {
        let name = "rope_freqs.weight".to_owned();
        headers.push(GgufTensor { name, kind: GgufType::F32, shape: vec![divisors.len()] });
    }
    let error = |source| ConvertError::File { path: place.display().to_string(), source };
    let header = gguf_header(&keys, &headers).map_err(error)?;
    let length = |tensor: &GgufTensor| {
        let bytes = tensor.bytes().unwrap_or(0);
        bytes + gguf_padding(bytes).len()
    };
    let parts = headers.iter().map(|new| FilePart { name: new.name.clone(), bytes: length(new) }).collect();
    let partial = Partial::open(place, ResultKind::File, job)?;
    let mut file = NewFile::create(partial, &header, parts, progress)?;
    notes.extend(continued(file.part(), headers.len()));
    for Planned { info, new } in planned.iter().skip(file.part()) {
        let order = match is_llama && !model.is_interleaved() {
            true => model.order(&info.name, info.shape.first().copied().unwrap_or(0), true)?,
            false => None,
        };
        let to = match new.kind {
            GgufType::F32 => RowType::Dense(DType::F32),
            GgufType::F16 => RowType::Dense(DType::F16),
            GgufType::BF16 => RowType::Dense(DType::BF16),
            GgufType::Q8_0 => RowType::Q8_0,
        };
        let tensor = model.checkpoint.tensor(&info.name, &info.shape)?;
        let mut write = |part: &[u8]| file.write(part);
        tensors::convert(&info.name, &tensor, order.map_or(Rows::All, Rows::Heads), to, &mut write)?;
        file.write(gguf_padding(new.bytes().unwrap_or(0)))?;
        model.checkpoint.check_readable()?;
        file.end_part()?;
    }
    if let Some(divisors) = divisors.filter(|_| file.part() < headers.len()) {
        let data: Vec<u8> = divisors.iter().flat_map(|divisor| divisor.to_le_bytes()).collect();
        file.write(&data)?;
        file.write(gguf_padding(data.len()))?;
        file.end_part()?;
    }
    model.checkpoint.verify()?;
    file.complete()?;
    let bytes = headers.iter().filter_map(GgufTensor::bytes).sum();
    Ok(ConvertReport { tensors: headers.len(), bytes, notes })
}

fn architecture(model: &Model<'_>) -> Result<&'static str, ConvertError> {
    let found = model.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let has_window = model.config.get("use_sliding_window").and_then(Value::as_bool) == Some(true);
    match found {
        "llama" | "mistral" => Ok("llama"),
        "qwen2" | "qwen3" if has_window => Err(model.unsupported("some of its layers have a sliding window")),
        "qwen2" => Ok("qwen2"),
        "qwen3" => Ok("qwen3"),
        other => Err(model
            .unsupported(format!("GGUF can be written of llama, mistral, qwen2 and qwen3, not of {other}"))),
    }
}

/// Returns the tensors of the new file, with the name that each has there.
fn plan(model: &Model<'_>, kind: GgufKind) -> Result<Vec<Planned>, ConvertError> {
    let is_tied = model.is_head_tied();
    let mut planned = Vec::new();
    for info in model.checkpoint.tensors() {
        // A tied head is the embedding, and the frequencies of old checkpoints follow from the
        // configuration.
        if (is_tied && info.name == "lm_head.weight") || info.name.ends_with("rotary_emb.inv_freq") {
            continue;
        }
        let Some(name) = gguf_tensor_name(&info.name) else {
            return Err(
                model.unsupported(format!("it has the tensor {}, which has no name in GGUF", info.name))
            );
        };
        let cols = info.shape.last().copied().unwrap_or(0);
        let kind = match kind {
            _ if info.shape.len() < 2 => GgufType::F32,
            GgufKind::Q8_0 if cols.is_multiple_of(BLOCK) => GgufType::Q8_0,
            GgufKind::Q8_0 | GgufKind::Dense(DType::F16) => GgufType::F16,
            GgufKind::Dense(DType::F32) => GgufType::F32,
            GgufKind::Dense(DType::BF16) => GgufType::BF16,
        };
        planned.push(Planned { new: GgufTensor { name, kind, shape: info.shape.clone() }, info });
    }
    Ok(planned)
}

type Keys = Vec<(String, GgufValue)>;

/// Returns the keys of the configuration, and the divisors of the rotary frequencies.
fn keys(model: &Model<'_>, architecture: &str) -> Result<(Keys, Option<Vec<f32>>), ConvertError> {
    let number = |key: &str| model.config.get(key).and_then(Value::as_f64);
    let mut keys: Keys = vec![("general.architecture".into(), GgufValue::Text(architecture.into()))];
    let name = match model.source {
        Source::Directory(path) | Source::File(path) => {
            path.file_stem().unwrap_or_default().to_string_lossy().into()
        }
        Source::Memory(_) => "demo".to_owned(),
    };
    keys.push(("general.name".into(), GgufValue::Text(name)));
    let mut add = |key: &str, value: GgufValue| keys.push((format!("{architecture}.{key}"), value));
    let word = |count: usize| GgufValue::U32(u32::try_from(count).unwrap_or(u32::MAX));
    let (heads, head_dim) = (model.count("num_attention_heads")?, model.head_dim()?);
    add("context_length", word(model.count("max_position_embeddings")?));
    add("embedding_length", word(model.count("hidden_size")?));
    add("block_count", word(model.count("num_hidden_layers")?));
    add("feed_forward_length", word(model.count("intermediate_size")?));
    add("vocab_size", word(model.count("vocab_size")?));
    add("attention.head_count", word(heads));
    add("attention.head_count_kv", word(model.count("num_key_value_heads").unwrap_or(heads)));
    add("attention.key_length", word(head_dim));
    add("attention.value_length", word(head_dim));
    add("attention.layer_norm_rms_epsilon", GgufValue::F32(number("rms_norm_eps").unwrap_or(1e-6) as f32));
    let scaling = model.config.get("rope_scaling").or_else(|| model.config.get("rope_parameters"));
    let of_scaling = |key: &str| scaling.and_then(|scaling| scaling.get(key)).and_then(Value::as_f64);
    let base = number("rope_theta").or_else(|| of_scaling("rope_theta")).unwrap_or(10_000.0);
    add("rope.freq_base", GgufValue::F32(base as f32));
    add("rope.dimension_count", word(head_dim));
    if let Some(window) = model.config.get("sliding_window").and_then(Value::as_u64)
        && architecture == "llama"
    {
        add("attention.sliding_window", word(window as usize));
    }
    let text = |key: &str| scaling.and_then(|scaling| scaling.get(key)).and_then(Value::as_str);
    let mut divisors = None;
    match text("rope_type").or_else(|| text("type")).unwrap_or("default") {
        "default" => {}
        "linear" => {
            add("rope.scaling.type", GgufValue::Text("linear".into()));
            add("rope.scaling.factor", GgufValue::F32(of_scaling("factor").unwrap_or(1.0) as f32));
        }
        "llama3" => {
            divisors = Some(
                llama3(head_dim, base, &of_scaling)
                    .ok_or_else(|| model.unsupported("the parameters of its rope_scaling are incomplete"))?,
            )
        }
        "divisors" => {
            let list = scaling.and_then(|scaling| scaling.get("divisors")).and_then(Value::as_array);
            let numbers = list.into_iter().flatten().filter_map(Value::as_f64);
            divisors = Some(numbers.map(|number| number as f32).collect());
        }
        other => return Err(model.unsupported(format!("rope_scaling of the type {other} cannot be written"))),
    }
    Ok((keys, divisors))
}

/// Returns the divisors of the frequencies of Llama 3: 1 for short waves, the factor for long ones,
/// and a transition between them.
fn llama3(head_dim: usize, base: f64, parameter: &dyn Fn(&str) -> Option<f64>) -> Option<Vec<f32>> {
    let (factor, low, high) =
        (parameter("factor")?, parameter("low_freq_factor")?, parameter("high_freq_factor")?);
    let original = parameter("original_max_position_embeddings")?;
    let divisor = |pair: usize| {
        let frequency = base.powf(-((2 * pair) as f64) / head_dim as f64);
        let wave = 2.0 * std::f64::consts::PI / frequency;
        let share = ((original / wave - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - share) / factor + share)) as f32
    };
    Some((0..head_dim / 2).map(divisor).collect())
}

/// Adds the tokenizer: that of the file, or that of `tokenizer.json`, which is also added as it is.
fn tokenizer_keys(model: &Model<'_>, keys: &mut Keys, notes: &mut Vec<String>) -> Result<(), ConvertError> {
    let ModelTokenizer { json, data } = tokenizer::of(model)?;
    if let Some(text) = json {
        keys.push(("tokenizer.huggingface.json".into(), GgufValue::Text(text)));
    }
    let Some(data) = data else {
        notes.push("other programs need a tokenizer in the file, and this one cannot be written".to_owned());
        return Ok(());
    };
    if data.model == "gpt2" && data.pre.is_none() {
        notes.push(
            "GGUF has no name for the pattern of this tokenizer: Millrace reads the file, but llama.cpp may not".to_owned(),
        );
    }
    add_tokenizer(model, data, keys);
    Ok(())
}

fn add_tokenizer(model: &Model<'_>, data: TokenizerData, keys: &mut Keys) {
    let mut add = |key: &str, value: GgufValue| keys.push((format!("tokenizer.{key}"), value));
    add("ggml.model", GgufValue::Text(data.model));
    if let Some(pre) = data.pre {
        add("ggml.pre", GgufValue::Text(pre));
    }
    add("ggml.tokens", GgufValue::Texts(data.tokens));
    if !data.scores.is_empty() {
        add("ggml.scores", GgufValue::F32s(data.scores));
    }
    if !data.kinds.is_empty() {
        add("ggml.token_type", GgufValue::I32s(data.kinds.iter().map(|&kind| kind as i32).collect()));
    }
    if !data.merges.is_empty() {
        add("ggml.merges", GgufValue::Texts(data.merges));
    }
    let of_config = |key: &str| match model.config.get(key) {
        Some(Value::Array(ids)) => ids.first().and_then(Value::as_u64),
        Some(id) => id.as_u64(),
        None => None,
    };
    let id = |found: Option<u32>, key: &str| found.map(u64::from).or_else(|| of_config(key));
    for (key, id) in [
        ("bos", id(data.special.bos, "bos_token_id")),
        ("eos", id(data.special.eos, "eos_token_id")),
        ("padding", id(data.special.padding, "pad_token_id")),
        ("unknown", data.special.unknown.map(u64::from)),
    ] {
        if let Some(id) = id.and_then(|id| u32::try_from(id).ok()) {
            add(&format!("ggml.{key}_token_id"), GgufValue::U32(id));
        }
    }
    for (key, flag) in [("add_bos_token", data.add_bos), ("add_space_prefix", data.add_space_prefix)] {
        if let Some(flag) = flag {
            add(&format!("ggml.{key}"), GgufValue::Bool(flag));
        }
    }
    if let Some(template) = data.chat_template {
        add("chat_template", GgufValue::Text(template));
    }
}
