//! Writes a folder in Hugging Face layout.

use std::path::Path;

use millrace_formats::{CheckpointWriter, DType as StoredDType, NewTensor, Source, TensorInfo};
use millrace_numbers::DType;
use serde_json::{Map, Value, json};

use super::error::ConvertError;
use super::model::{ConvertReport, Model, continued};
use super::new_file::RECORDED;
use super::slimming::Slimmed;
use super::tensors::{self, RowType, Rows};
use crate::partial::{Job, Partial, ResultKind};
use crate::quantize::small_files;
use crate::vectors::pooling_files;

/// The small files of a model that may lie beside a file with its weights.
const BESIDE: [&str; 7] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// The options of a new folder.
pub(super) struct FolderOptions<'a> {
    /// Element type of the weights. If absent, dense weights keep theirs.
    pub(super) dtype: Option<DType>,
    /// The largest size of a file in bytes, unless a single tensor has more.
    pub(super) max_file_bytes: usize,
    /// The part of the vocabulary that stays.
    pub(super) cut: Option<&'a Slimmed>,
}

pub(super) fn write(
    model: &Model<'_>,
    place: &Path,
    job: &Job,
    options: &FolderOptions<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport, ConvertError> {
    let &FolderOptions { dtype, max_file_bytes, cut } = options;
    let method = model.quantization();
    if let (Some(method), Some(_)) = (&method, dtype) {
        return Err(model.quantized(method.clone()));
    }
    let usual =
        match model.config.get("torch_dtype").or_else(|| model.config.get("dtype")).and_then(Value::as_str) {
            Some("float32") => DType::F32,
            Some("float16") => DType::F16,
            _ => DType::BF16,
        };
    let infos: Vec<TensorInfo> = model.checkpoint.tensors().collect();
    let is_copied = method.is_some();
    let types: Vec<RowType> = infos.iter().map(|info| row_type(info, is_copied, dtype, usual)).collect();
    let new = |(info, to): (&TensorInfo, &RowType)| {
        let dtype = match to {
            RowType::Dense(dtype) => stored(*dtype),
            _ => info.dtype.clone(),
        };
        let mut shape = info.shape.clone();
        if let (Some(rows), Some(cut)) = (shape.first_mut(), cut.filter(|cut| cut.has(&info.name))) {
            *rows = cut.kept.stored.len();
        }
        vec![NewTensor { name: info.name.clone(), dtype, shape }]
    };
    let groups: Vec<Vec<NewTensor>> = infos.iter().zip(&types).map(new).collect();
    let bytes: usize = groups.iter().flatten().map(NewTensor::bytes).sum();
    let mut folder = Partial::open(place, ResultKind::Folder, job)?;
    let sizes: Vec<usize> = groups.iter().map(|group| group.iter().map(NewTensor::bytes).sum()).collect();
    let mut writer = match folder.done() {
        0 => None,
        found => CheckpointWriter::reopen(&folder.result(), groups.clone(), max_file_bytes, found)?,
    };
    if writer.is_none() && folder.done() > 0 {
        folder.start_again()?;
    }
    let first = folder.done().min(infos.len());
    let mut done: usize = sizes[..first].iter().sum();
    folder.check_space(bytes - done)?;
    let mut writer = match writer.take() {
        Some(writer) => writer,
        None => CheckpointWriter::create(&folder.result(), groups, max_file_bytes)?,
    };
    let mut recorded = done;
    for (index, (info, to)) in infos.iter().zip(types).enumerate().skip(first) {
        let rows = match (cut.filter(|cut| cut.has(&info.name)), model.is_interleaved()) {
            (Some(cut), _) => Rows::Kept(&cut.kept.stored),
            (None, true) => {
                let order = model.order(&info.name, info.shape.first().copied().unwrap_or(0), false)?;
                order.map_or(Rows::All, Rows::Heads)
            }
            (None, false) => Rows::All,
        };
        let tensor = model.checkpoint.tensor(&info.name, &info.shape)?;
        let mut write = |part: &[u8]| -> Result<(), ConvertError> {
            writer.write(&info.name, part)?;
            done += part.len();
            progress(done, bytes);
            Ok(())
        };
        tensors::convert(&info.name, &tensor, rows, to, &mut write)?;
        model.checkpoint.check_readable()?;
        if done - recorded >= RECORDED {
            writer.sync()?;
            folder.record(index + 1)?;
            recorded = done;
        }
    }
    writer.finish()?;
    let mut config = model.config.clone();
    // Heads that predict further tokens stay where the file has them. Everything else is undone.
    let place = config.remove("millrace").and_then(|own| own.get("later_layers").cloned());
    if let Some(place) = place {
        config.insert("millrace".into(), json!({"later_layers": place}));
    }
    if let Some(dtype) = dtype {
        config.remove("dtype");
        config.insert("torch_dtype".into(), dtype.name().into());
    }
    if let Some(cut) = cut {
        cut.rewrite_config(&mut config);
    }
    folder.write("config.json", format!("{:#}\n", Value::Object(config)).as_bytes())?;
    let mut notes = files(model, &folder, cut)?;
    notes.extend(cut.map(Slimmed::note));
    notes.extend(continued(first, infos.len()));
    model.checkpoint.verify()?;
    folder.complete()?;
    Ok(ConvertReport { tensors: infos.len(), bytes, notes })
}

/// Returns the type of a converted tensor. Tensors that are not dense numbers are copied.
fn row_type(info: &TensorInfo, is_copied: bool, dtype: Option<DType>, usual: DType) -> RowType {
    let is_float = [StoredDType::F32, StoredDType::F16, StoredDType::BF16].contains(&info.dtype);
    match (&info.dtype, dtype) {
        (StoredDType::Blocks(_), dtype) => RowType::Dense(dtype.unwrap_or(usual)),
        (found, Some(dtype)) if is_float && !is_copied && *found != stored(dtype) => RowType::Dense(dtype),
        _ => RowType::Stored,
    }
}

pub(super) fn stored(dtype: DType) -> StoredDType {
    match dtype {
        DType::F32 => StoredDType::F32,
        DType::F16 => StoredDType::F16,
        DType::BF16 => StoredDType::BF16,
    }
}

/// Writes the other files of a model. Returns what the user should know.
fn files(model: &Model<'_>, folder: &Partial, cut: Option<&Slimmed>) -> Result<Vec<String>, ConvertError> {
    let Source::File(path) = model.source else {
        for name in small_files(model.source)? {
            let Some(bytes) = model.source.text(&name)? else { continue };
            match cut {
                Some(cut) => {
                    if let Some(bytes) = cut.rewrite_file(model, &name, bytes)? {
                        folder.write(&name, &bytes)?;
                    }
                }
                None => folder.write(&name, &bytes)?,
            }
        }
        return Ok(Vec::new());
    };
    let pooling = model.stored_pooling();
    let hidden = model.count("hidden_size").unwrap_or_default();
    for (name, bytes) in pooling.and_then(|number| pooling_files(number, hidden)).into_iter().flatten() {
        folder.write(&name, &bytes)?;
    }
    let beside = Source::Directory(path.parent().unwrap_or(Path::new("")).to_owned());
    let mut has_tokenizer = false;
    let mut written = Vec::new();
    for name in BESIDE {
        if let Some(bytes) = beside.text(name)? {
            folder.write(name, &bytes)?;
            has_tokenizer |= name.starts_with("tokenizer.");
            written.push(name);
        }
    }
    let Some(data) = model.source.tokenizer_data()? else {
        let note = "there is no tokenizer in the file or beside it: add tokenizer.json to the new folder";
        return Ok(if has_tokenizer { Vec::new() } else { vec![note.to_owned()] });
    };
    if !has_tokenizer {
        if let Some(json) = &data.huggingface_json {
            folder.write("tokenizer.json", json.as_bytes())?;
        } else if let Some(json) = (data.model == "t5").then(|| data.unigram_json().ok()).flatten() {
            folder.write("tokenizer.json", json.as_bytes())?;
        } else if let Some(message) = data.sentencepiece_model() {
            folder.write("tokenizer.model", &message)?;
        } else {
            let note = "the tokenizer in the file cannot be written as one of Hugging Face: add tokenizer.json to the \
                        new folder";
            return Ok(vec![note.to_owned()]);
        }
    }
    if !written.contains(&"tokenizer_config.json") {
        let text = |id: Option<u32>| id.and_then(|id| data.tokens.get(id as usize));
        let mut config = Map::new();
        for (key, id) in [
            ("bos_token", data.special.bos),
            ("eos_token", data.special.eos),
            ("unk_token", data.special.unknown),
            ("pad_token", data.special.padding),
        ] {
            if let Some(token) = text(id) {
                config.insert(key.to_owned(), json!(token));
            }
        }
        if let Some(add) = data.add_bos {
            config.insert("add_bos_token".to_owned(), json!(add));
        }
        if let Some(template) = &data.chat_template {
            config.insert("chat_template".to_owned(), json!(template));
        }
        folder.write("tokenizer_config.json", format!("{:#}\n", Value::Object(config)).as_bytes())?;
    }
    Ok(Vec::new())
}
