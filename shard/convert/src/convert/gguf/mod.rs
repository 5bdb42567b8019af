//! Writes a GGUF file of every family whose files can be read.
//!
//! The tables that files are read with say what a new one has: the architecture, the names of its
//! tensors, the order of their rows and the change of their numbers. The keys follow from the
//! specification of the decoder. They are read again before anything is written, and a file that
//! would describe another model is refused.

mod check;
mod described;
mod factors;
mod keys;
mod layout;
mod particular;
mod rotation;
mod rows;
mod tokenizer_keys;

use std::path::Path;

use millrace_formats::{
    Error, FileFault, GgufArchitecture, GgufOrder, GgufTensor, GgufType, GgufValue, Source, gguf_config,
    gguf_header, gguf_padding,
};
use millrace_model::families::{self, StoredModel};
use millrace_model::{DecoderSpec, WeightSlot};
use serde_json::Value;

use super::error::ConvertError;
use super::model::{ConvertReport, GgufKind, Model, continued};
use super::new_file::{FilePart, NewFile};
use crate::partial::{Job, Partial, ResultKind};
use crate::vectors::gguf_pooling;
use check::Allowed;
use described::{Described, Keys, Settings};
use factors::Factors;
use layout::Planned;
use rotation::Constant;
use rows::Reordered;

/// The architecture whose files have factors in their weights.
const WITH_FACTORS: &str = "falcon-h1";

/// The number of the pooling of a classifier.
const RANK: u64 = 4;

/// A file before it is written.
struct NewGguf<'a> {
    keys: Keys,
    constants: Vec<Constant>,
    planned: Vec<Planned>,
    weights: Reordered<'a>,
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
    let stored = StoredModel::open(model.source)?;
    let mut new = describe(model, &stored, kind)?;
    let mut notes = other_keys(model, stored.spec(), &mut new.keys)?;
    let error = |source| ConvertError::File { path: place.display().to_string(), source };
    let headers = new.headers();
    let header = gguf_header(&new.keys.list, &headers).map_err(error)?;
    let parts = headers.iter().map(|new| FilePart { name: new.name.clone(), bytes: padded(new) }).collect();
    let partial = Partial::open(place, ResultKind::File, job)?;
    let mut file = NewFile::create(partial, &header, parts, progress)?;
    notes.extend(continued(file.part(), headers.len()));
    for (index, header) in headers.iter().enumerate().skip(file.part()) {
        match index.checked_sub(new.constants.len()) {
            None => file.write(&bytes(&new.constants[index]))?,
            Some(index) => {
                new.weights.convert(&new.planned[index], &mut |part: &[u8]| file.write(part))?;
            }
        }
        file.write(gguf_padding(header.bytes().unwrap_or(0)))?;
        model.checkpoint.check_readable()?;
        file.end_part()?;
    }
    model.checkpoint.verify()?;
    file.complete()?;
    let bytes = headers.iter().filter_map(GgufTensor::bytes).sum();
    Ok(ConvertReport { tensors: headers.len(), bytes, notes })
}

/// Describes the file: the first architecture of the family whose files can say everything about
/// the model.
fn describe<'a>(
    model: &Model<'_>,
    stored: &'a StoredModel,
    kind: GgufKind,
) -> Result<NewGguf<'a>, ConvertError> {
    let model_type = &stored.spec().model_type;
    let mut reason = None;
    for architecture in GgufArchitecture::of(model_type) {
        match NewGguf::of(model, stored, architecture, kind)? {
            Ok(new) => return Ok(new),
            Err(found) => reason.get_or_insert(found),
        };
    }
    let unknown = || format!("Millrace knows no GGUF architecture for models of the type {model_type}");
    Err(model.unsupported(reason.unwrap_or_else(unknown)))
}

impl<'a> NewGguf<'a> {
    /// Describes a file of this architecture. The inner error is the reason why it cannot describe
    /// the model.
    fn of(
        model: &Model<'_>,
        stored: &'a StoredModel,
        architecture: GgufArchitecture,
        kind: GgufKind,
    ) -> Result<Result<Self, String>, ConvertError> {
        let (spec, settings) = (stored.spec(), Settings::of(&model.config));
        if !architecture.can_be_written() {
            let reason = "a file needs the tensors by which it chooses keys, which are not loaded";
            return Ok(Err(reason.to_owned()));
        }
        // The factors of a file are in its weights.
        let has_factors = architecture.name() == WITH_FACTORS && !matches!(model.source, Source::File(_));
        let factors = match has_factors.then(|| Factors::read(settings, spec)).transpose() {
            Ok(factors) => factors,
            Err(reason) => return Ok(Err(reason)),
        };
        let planned = match layout::plan(stored, architecture, kind) {
            Ok(planned) => planned,
            Err(reason) => return Ok(Err(reason)),
        };
        let described = Described { architecture, spec, settings };
        let mut keys = Keys::of(architecture);
        described.add_keys(&mut keys);
        let order = GgufOrder::of_config(&model.config);
        let new_order = architecture.order();
        let allowed = Allowed {
            reordered_features: order.rope_interleaved != new_order.rope_interleaved,
            reordered_value_heads: order.strided_value_heads != new_order.strided_value_heads,
            factors: has_factors,
        };
        let weights = Reordered { model: stored, architecture, stored: order, factors };
        weights.add_layer_numbers(&mut keys)?;
        let new = NewGguf { keys, constants: rotation::constants(&described), planned, weights };
        Ok(match new.read_again() {
            Ok(read) => match check::difference(spec, &read, allowed) {
                None => Ok(new),
                Some(part) => Err(format!(
                    "GGUF files of {} cannot describe {part} as its configuration does",
                    architecture.name()
                )),
            },
            Err(reason) => Err(format!("GGUF files of {} cannot describe it: {reason}", architecture.name())),
        })
    }

    /// Returns the descriptions of all tensors. Those that follow from the configuration come
    /// first, so that the begin of the file describes the model.
    fn headers(&self) -> Vec<GgufTensor> {
        let constant = |constant: &Constant| GgufTensor {
            name: constant.name.to_owned(),
            kind: GgufType::F32,
            shape: vec![constant.numbers.len()],
        };
        let planned = self.planned.iter().map(|planned| planned.new.clone());
        self.constants.iter().map(constant).chain(planned).collect()
    }

    /// Returns the specification that the file is read with.
    fn read_again(&self) -> Result<DecoderSpec, String> {
        const NAME: &str = "the new file";
        let headers = self.headers();
        let mut begin = gguf_header(&self.keys.list, &headers).map_err(|error| error.to_string())?;
        let length = begin.len() + headers.iter().map(padded).sum::<usize>();
        for constant in &self.constants {
            let data = bytes(constant);
            begin.extend(&data);
            begin.extend(gguf_padding(data.len()));
        }
        let reason = |error| match error {
            Error::ModelFile { fault: FileFault::MissingKey(key), .. } => format!("the key {key} is missing"),
            Error::ModelFile { fault, .. } => fault.to_string(),
            other => other.to_string(),
        };
        let config = gguf_config(NAME, &begin, length).map_err(reason)?;
        let config = Value::Object(config).to_string();
        families::spec_of_config(NAME.to_owned(), config.as_bytes()).map_err(|error| error.to_string())
    }
}

impl Reordered<'_> {
    /// Adds the lists with a number for each layer.
    fn add_layer_numbers(&self, keys: &mut Keys) -> Result<(), ConvertError> {
        for (key, pattern) in self.architecture.layer_numbers() {
            let module = pattern.split_once("*.").map_or("", |(_, module)| module);
            let is_it = |slot: &WeightSlot| {
                slot.layer().is_some() && slot.info().usual_tensors.iter().any(|(name, _)| *name == module)
            };
            let slots = self.model.spec().slots().into_iter().filter(is_it);
            let numbers = slots.map(|slot| Ok(self.vector(slot)?.first().copied().unwrap_or(0.0)));
            let numbers: Vec<f32> = numbers.collect::<Result<_, ConvertError>>()?;
            keys.list.push((key.to_owned(), GgufValue::F32s(numbers)));
        }
        Ok(())
    }
}

/// Adds the name of the model, the pooling of its vectors and its tokenizer. Returns what the user
/// should know.
fn other_keys(model: &Model<'_>, spec: &DecoderSpec, keys: &mut Keys) -> Result<Vec<String>, ConvertError> {
    let name = match model.source {
        Source::Directory(path) | Source::File(path) => {
            path.file_stem().unwrap_or_default().to_string_lossy().into()
        }
        Source::Memory(_) => "demo".to_owned(),
    };
    keys.list.push(("general.name".to_owned(), GgufValue::Text(name)));
    let is_classifier = spec.head.classifier.is_some();
    let (pooling, mut notes) = match model.stored_pooling() {
        _ if is_classifier => (Some(RANK), Vec::new()),
        Some(number) => (Some(number), Vec::new()),
        None => gguf_pooling(model.source),
    };
    if let Some(number) = pooling {
        keys.count("pooling_type", number as usize);
    }
    tokenizer_keys::add(model, spec.vocab, keys, &mut notes)?;
    Ok(notes)
}

fn bytes(constant: &Constant) -> Vec<u8> {
    constant.numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Returns the bytes of a tensor with the zeros that follow it.
fn padded(tensor: &GgufTensor) -> usize {
    let bytes = tensor.bytes().unwrap_or(0);
    bytes + gguf_padding(bytes).len()
}
