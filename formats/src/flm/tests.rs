//! Files that are written here, and damaged ones.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Checkpoint, Source};

fn word(number: i32) -> Vec<u8> {
    number.to_le_bytes().into()
}

fn text(text: &str) -> Vec<u8> {
    [&word(text.len() as i32)[..], text.as_bytes()].concat()
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Returns the begin of a tensor: name, shape and type.
fn head(name: &str, shape: &[i32], id: i32) -> Vec<u8> {
    let shape: Vec<u8> = shape.iter().flat_map(|size| size.to_le_bytes()).collect();
    [text(name), word(shape.len() as i32 / 4), shape, word(id)].concat()
}

/// Returns a file with these tensors.
fn file(tensors: &[Vec<u8>]) -> Vec<u8> {
    let keys = [
        ("bos_token_id", "1"),
        ("eos_token_id", "2"),
        ("hidden_size", "8"),
        ("model_type", "llama"),
        ("tokenizer_has_special_tokens", "1"),
        ("tokenizer_use_score", "1"),
        ("torch_dtype", "torch.float16"),
    ];
    let mut bytes = [word(2), word(keys.len() as i32)].concat();
    for (key, value) in keys {
        bytes.extend([text(key), text(value)].concat());
    }
    let tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "▁ü", "<end>"];
    bytes.extend(word(tokens.len() as i32));
    for (id, token) in tokens.iter().enumerate() {
        bytes.extend(word(token.len() as i32));
        // The original writes bytes as numbers with a sign.
        bytes.extend(token.bytes().flat_map(|byte| i32::from(byte.cast_signed()).to_le_bytes()));
        bytes.extend([word(id as i32), floats(&[-(id as f32)])].concat());
    }
    bytes.extend([word(1), text("<end>"), word(tensors.len() as i32)].concat());
    bytes.extend(tensors.concat());
    bytes
}

fn tensors() -> Vec<Vec<u8>> {
    let ranges = floats(&[-1.0, 1.0, 0.5, 2.0]);
    let bytes: Vec<u8> = (0..16).collect();
    vec![
        [head("a.weight", &[2], 0), floats(&[1.5, -2.0])].concat(),
        [head("b.weight", &[2, 1], 7), vec![0, 0x3c, 0, 0x40]].concat(),
        [head("bytes.weight", &[2, 8], 3), word(0), ranges.clone(), bytes].concat(),
        [head("halves.weight", &[2, 8], 4), word(0), ranges.clone(), (0x10..0x18).collect()].concat(),
        // One range for all rows.
        [head("whole.weight", &[2, 8], 8), word(-1), floats(&[-1.5, 0.0]), vec![0xf0; 8]].concat(),
        // Two groups in a row of 16.
        [head("groups.weight", &[1, 16], 9), word(0), word(2), word(8), ranges.clone(), vec![0x12; 8]]
            .concat(),
        // Rows that are no whole words.
        [head("odd.weight", &[2, 3], 4), word(0), ranges, vec![0x12, 0x3f, 0x0e]].concat(),
    ]
}

fn opened(bytes: &[u8]) -> (tempfile::TempDir, Result<Checkpoint, Error>, Result<Value, Error>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.flm");
    std::fs::write(&path, bytes).unwrap();
    let source = Source::File(path);
    let config = source.config().map(|config| serde_json::from_slice(&config).unwrap());
    (folder, Checkpoint::open(&source), config)
}

fn numbers(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let bytes = checkpoint.find(name).unwrap().bytes;
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn codes_are_those_of_compressed_tensors() {
    let (_folder, checkpoint, config) = opened(&file(&tensors()));
    let checkpoint = checkpoint.unwrap();
    assert_eq!(numbers(&checkpoint, "a.weight"), [1.5, -2.0]);
    assert_eq!(checkpoint.find("b.weight").unwrap().dtype, &DType::F16);
    let bytes = |name: &str| checkpoint.find(name).unwrap().bytes.to_vec();
    assert_eq!(bytes("bytes.weight_packed"), (0..16).collect::<Vec<u8>>());
    // -1 to 1 has its 0 at 127.5, and a range always contains 0.
    let scale = 2.0f32 / 255.0;
    assert_eq!(numbers(&checkpoint, "bytes.weight_scale"), [scale, 2.0 / 255.0]);
    assert_eq!(bytes("bytes.weight_zero_point"), [(1.0 / scale).round() as u8, 0, 0, 0]);
    // The even element is in the upper half in the file, and in the lower one here.
    assert_eq!(bytes("halves.weight_packed"), [0x01, 0x11, 0x21, 0x31, 0x41, 0x51, 0x61, 0x71]);
    // In single precision, 1 / (2 / 15) is a little less than 7.5.
    assert_eq!(bytes("halves.weight_zero_point"), [7, 0, 0, 0]);
    assert_eq!(numbers(&checkpoint, "whole.weight_scale"), [0.1, 0.1]);
    assert_eq!(bytes("whole.weight_zero_point"), [0xff, 0, 0, 0]);
    assert_eq!(checkpoint.find("groups.weight_scale").unwrap().shape, [1, 2]);
    assert_eq!(bytes("groups.weight_zero_point"), [7, 0, 0, 0, 0, 0, 0, 0]);
    // Codes 1, 2, 3 and 15, 0, 14.
    let scale = 2.0f32 / 15.0;
    let first = [-6.0 * scale, -5.0 * scale, -4.0 * scale];
    let second = [15.0 * scale, 0.0, 14.0 * scale];
    assert_eq!(numbers(&checkpoint, "odd.weight"), [first, second].concat());

    let config = config.unwrap();
    assert_eq!((&config["hidden_size"], &config["torch_dtype"]), (&json!(8), &json!("bfloat16")));
    let groups = config["quantization_config"]["config_groups"].as_object().unwrap();
    let names: Vec<&String> = groups.keys().collect();
    assert_eq!(names, ["group_4_8", "group_4_rows", "group_8_rows"]);
    assert_eq!(groups["group_4_8"]["weights"]["group_size"], json!(8));
}

#[test]
fn the_vocabulary_is_in_the_file() {
    let (folder, ..) = opened(&file(&tensors()));
    let data = Source::File(folder.path().join("model.flm")).tokenizer_data().unwrap().unwrap();
    assert_eq!(data.tokens, ["<unk>", "<s>", "</s>", "<0x0A>", "▁ü", "<end>"]);
    assert_eq!(data.scores, [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]);
    use PieceKind::{Byte, Control, Normal, Unknown, UserDefined};
    assert_eq!(data.kinds, [Unknown, Control, Control, Byte, Normal, UserDefined]);
    assert_eq!((data.special.bos, data.special.eos), (Some(1), Some(2)));
}

#[test]
fn damaged_files_are_refused_by_name() {
    let refused = |tensor: Vec<u8>| opened(&file(&[tensor])).1.unwrap_err().to_string();
    let nan = refused([head("x.weight", &[1, 2], 3), word(0), floats(&[f32::NAN, 1.0]), vec![0; 2]].concat());
    assert!(nan.contains("the tensor x.weight has a range that is not a number"), "{nan}");
    let vector = refused([head("x", &[2], 3), word(0)].concat());
    assert!(vector.contains("only matrices are quantized"), "{vector}");
    let unknown = refused(head("x", &[2], 10));
    assert!(unknown.contains("the tensor x has the unknown type 10"), "{unknown}");
    let huge = refused(head("x", &[i32::MAX, i32::MAX, i32::MAX], 0));
    assert!(huge.contains("has the impossible shape"), "{huge}");
    let cut = refused(head("x", &[1 << 20, 1 << 20], 0));
    assert!(cut.contains("the data of a tensor at byte"), "{cut}");
    let groups = [head("x.weight", &[1, 16], 9), word(0), word(3), word(8), vec![0; 40]].concat();
    assert!(refused(groups).contains("has 3 groups of 8 columns for 16 columns"));
    let twice = opened(&file(&[tensors()[0].clone(), tensors()[0].clone()])).1.unwrap_err().to_string();
    assert!(twice.contains("tensor a.weight in") && twice.contains("is listed twice"), "{twice}");
}

/// A file that is written has the bytes of the one that is put together above.
#[test]
fn written_files_are_those_of_the_format() {
    let keys = [
        ("bos_token_id", "1"),
        ("eos_token_id", "2"),
        ("hidden_size", "8"),
        ("model_type", "llama"),
        ("tokenizer_has_special_tokens", "1"),
        ("tokenizer_use_score", "1"),
        ("torch_dtype", "torch.float16"),
    ];
    let keys = keys.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "▁ü", "<end>"];
    let token = |(id, text): (usize, &&str)| FlmToken {
        text: (*text).to_owned(),
        id: id as u32,
        score: Some(-(id as f32)),
    };
    let tokens: Vec<FlmToken> = tokens.iter().enumerate().map(token).collect();
    let tensor =
        |name: &str, shape: &[usize], kind| FlmTensor { name: name.to_owned(), shape: shape.to_vec(), kind };
    let ranges = [(-1.0, 1.0), (0.5, 2.0)];
    let written = [
        (tensor("a.weight", &[2], FlmKind::F32), &[][..], floats(&[1.5, -2.0])),
        (tensor("b.weight", &[2, 1], FlmKind::F16), &[], vec![0, 0x3c, 0, 0x40]),
        (tensor("bytes.weight", &[2, 8], FlmKind::Int8), &ranges, (0..16).collect()),
        (tensor("odd.weight", &[1, 3], FlmKind::Int4), &ranges[..1], vec![0x12, 0x30]),
    ];
    let special = ["<end>".to_owned()];
    let mut bytes = flm_header(&keys, &tokens, Some(&special), written.len());
    let mut want = tensors();
    want.truncate(3);
    want.push([head("odd.weight", &[1, 3], 8), word(0), floats(&[-1.0, 1.0]), vec![0x12, 0x30]].concat());
    for ((tensor, ranges, data), want) in written.iter().zip(&want) {
        let before = bytes.len();
        bytes.extend(tensor.description(ranges));
        bytes.extend(data);
        assert_eq!(bytes.len() - before, tensor.bytes());
        assert_eq!(tensor.bytes(), want.len(), "{}", tensor.name);
    }
    assert_eq!(bytes, file(&want));
}

#[test]
fn codes_are_the_nearest_to_their_numbers() {
    for kind in [FlmKind::Int8, FlmKind::Int4] {
        for range in [(-1.0, 2.0), (0.5, 0.75), (-3.0, -1.0), (0.0, 0.0)] {
            let (scale, zero_point) = kind.scale(range);
            for step in 0..=20 {
                let number = range.0 + (range.1 - range.0) * step as f32 / 20.0;
                let code = kind.code(number, (scale, zero_point));
                let read = (f32::from(code) - f32::from(zero_point)) * scale;
                // The zero point is rounded, so that an end of the range may lie beyond the codes.
                assert!((read - number).abs() <= scale * 1.01, "{kind:?} {range:?}: {read} for {number}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damaged_bytes_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = file(&tensors());
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(length.index(bytes.len()));
        }
        crate::fuzz::model_files(&bytes);
    }
}
