use proptest::prelude::*;

use super::file::{Header, StoredTensor};
use super::test_writer::{TestFile, TestValue};
use super::tokenizer;
use crate::dtype::DType;
use crate::vocabulary::{PieceKind, SpecialTokenIds, TokenizerData};
use millrace_numbers::BlockType;

fn sample(version: u32) -> TestFile {
    TestFile::new(version)
        .key("general.architecture", TestValue::Text("llama"))
        .key("llama.block_count", TestValue::U32(2))
        .key("llama.rope.freq_base", TestValue::F32(500.5))
        .key("flag", TestValue::Bool(true))
        .key("list", TestValue::I32s(&[3, -4]))
        .tensor("a.weight", &[3, 2], 0, &(0..24).collect::<Vec<u8>>())
        .tensor("b.weight", &[64], 2, &[7; 36])
}

fn refusal(bytes: &[u8]) -> String {
    Header::read("x.gguf", bytes).unwrap_err().to_string()
}

/// The error about the header, without the beginning that all have.
fn fault(bytes: &[u8]) -> String {
    let text = refusal(bytes);
    text.strip_prefix("x.gguf is not a usable GGUF file: ").unwrap_or(&text).to_owned()
}

#[test]
fn all_versions_are_read() {
    for version in 1..=3 {
        let bytes = sample(version).bytes();
        let header = Header::read("x.gguf", &bytes).unwrap();
        assert_eq!(header.text("general.architecture").unwrap(), Some("llama"));
        assert_eq!(header.count("llama.block_count").unwrap(), Some(2));
        assert_eq!(header.number("llama.rope.freq_base").unwrap(), Some(500.5));
        assert_eq!(header.truth("flag").unwrap(), Some(true));
        assert_eq!(header.array("list", |list, key| list.numbers(key)).unwrap(), Some(vec![3.0, -4.0]));
        assert_eq!(header.count("none").unwrap(), None);
        let data = bytes.len() - 32 - 36;
        let tensor = |name: &str, dtype, shape: &[usize], start, len| StoredTensor {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            range: start..start + len,
        };
        let b = tensor("b.weight", DType::Blocks(BlockType::Q4_0), &[64], data + 32, 36);
        assert_eq!(header.tensors, [tensor("a.weight", DType::F32, &[2, 3], data, 24), b]);
        assert_eq!(bytes[data..data + 24], (0..24).collect::<Vec<u8>>());
    }
}

#[test]
fn values_of_other_types_are_refused_with_their_key() {
    let bytes = sample(3).bytes();
    let header = Header::read("x.gguf", &bytes).unwrap();
    let text = header.count("general.architecture").unwrap_err().to_string();
    assert!(text.ends_with("the key general.architecture is a text, but must be a whole number"), "{text}");
    let text = header.text("list").unwrap_err().to_string();
    assert!(text.ends_with("the key list is an array, but must be a text"), "{text}");
    let text = header.array("list", |list, key| list.counts(key)).unwrap_err().to_string();
    assert!(text.ends_with("the key list is -4, but must not be negative"), "{text}");
    let nan = TestFile::new(3).key("x", TestValue::F32(f32::NAN)).bytes();
    let text = Header::read("x.gguf", &nan).unwrap().number("x").unwrap_err().to_string();
    assert!(text.ends_with("the key x is NaN, which is no usable number"), "{text}");
}

#[test]
fn damaged_headers_are_named() {
    let valid = sample(3).bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = valid.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        fault(&file)
    };
    assert_eq!(with(0, b"PK"), "its first bytes are not those of such a file");
    assert_eq!(with(4, &[4]), "it has version 4, and this program knows 1, 2 and 3");
    assert!(with(4, &[0, 0, 0, 3]).starts_with("its numbers are big-endian"));
    let many = with(8, &u64::MAX.to_le_bytes());
    assert!(many.starts_with("it announces 18446744073709551615 tensors, more than the limit of "), "{many}");
    let many = with(16, &[255, 255]);
    assert!(many.starts_with("it announces 65535 keys, more than the limit of "), "{many}");
    assert!(with(24, &u64::MAX.to_le_bytes()).starts_with("a key at byte 32 needs 18446744073709551615"));

    let word = |number: u32| number.to_le_bytes();
    let raw = |value: &[u8]| fault(&TestFile::new(3).raw("k", value).bytes());
    assert!(raw(&word(13)).starts_with("the value of k has the unknown type 13"), "{}", raw(&word(13)));
    let huge = [&word(9)[..], &word(8), &(1u64 << 60).to_le_bytes()].concat();
    assert!(raw(&huge).starts_with("it announces 1152921504606846976 texts or arrays"), "{}", raw(&huge));
    let huge = [&word(9)[..], &word(10), &u64::MAX.to_le_bytes()].concat();
    assert!(raw(&huge).starts_with("an array at byte"), "{}", raw(&huge));
    let level = [&word(9)[..], &1u64.to_le_bytes()].concat();
    let nested = [&word(9)[..], &level.repeat(1000)].concat();
    assert_eq!(raw(&nested), "k has arrays in arrays that are nested more than 4 times");

    let twice = TestFile::new(3).key("k", TestValue::U32(1)).key("k", TestValue::U32(2)).bytes();
    assert_eq!(fault(&twice), "the key k is there twice; the file is damaged");
    let alignment = sample(3).key("general.alignment", TestValue::U32(24)).bytes();
    assert!(fault(&alignment).starts_with("general.alignment is 24, but must be a power of two"));
}

#[test]
fn damaged_tensors_are_named() {
    let refused = |name: &str, axes: &[usize], id, data: &[u8]| {
        fault(&TestFile::new(3).tensor(name, axes, id, data).bytes())
    };
    let unknown = refused("x", &[32], 77, &[]);
    assert_eq!(
        unknown,
        "the tensor x has the unknown type 77; the file is damaged, or a newer program is needed"
    );
    let partial = refused("x", &[33], 2, &[0; 64]);
    assert!(
        partial.starts_with("tensor x in x.gguf has rows of 33 elements, but Q4_0 needs a multiple of 32")
    );
    let overflow = refused("x", &[1 << 40, 1 << 40], 0, &[]);
    assert!(overflow.contains("has the impossible shape [1099511627776, 1099511627776]"), "{overflow}");
    let axes = refused("x", &[1, 1, 1, 1, 1], 0, &[0; 4]);
    assert!(axes.contains("has 5 axes, more than the limit of 4"), "{axes}");
    let cut = refused("x", &[9], 0, &[0; 32]);
    assert!(cut.contains("reaches to byte 36 of the data, but the file has only 32 bytes of data"), "{cut}");
    let twice = TestFile::new(3).tensor("x", &[1], 0, &[0; 4]).tensor("x", &[1], 0, &[0; 4]).bytes();
    assert!(fault(&twice).contains("tensor x in x.gguf is listed twice"), "{}", fault(&twice));
    let long = refused(&"x".repeat(300), &[1], 0, &[0; 4]);
    assert!(long.contains("too short or too long"), "{long}");

    // The offset is the last word of the header.
    let with_offset = |offset: u64| {
        let mut file = TestFile::new(3).tensor("a", &[8], 0, &[0; 32]).tensor("b", &[8], 0, &[0; 32]);
        file.alignment = 32;
        let mut bytes = file.bytes();
        let at = 24 + (8 + 1 + 4 + 8 + 4 + 8) * 2 - 8;
        bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        fault(&bytes)
    };
    assert!(with_offset(33).contains("tensor b in x.gguf begins at 33, which is not a multiple of 32"));
    assert!(with_offset(0).contains("shares bytes with a"), "{}", with_offset(0));
    assert!(with_offset(u64::MAX - 31).contains("reaches to byte"), "{}", with_offset(u64::MAX - 31));
}

fn tokenizer_file() -> TestFile {
    TestFile::new(3)
        .key("tokenizer.ggml.model", TestValue::Text("llama"))
        .key("tokenizer.ggml.tokens", TestValue::Texts(&["<unk>", "<s>", "a", "\u{2581}b"]))
        .key("tokenizer.ggml.scores", TestValue::F32s(&[0.0, 0.0, -1.0, -2.5]))
        .key("tokenizer.ggml.token_type", TestValue::I32s(&[2, 3, 1, 1]))
        .key("tokenizer.ggml.bos_token_id", TestValue::U32(1))
        .key("tokenizer.ggml.add_space_prefix", TestValue::Bool(false))
}

#[test]
fn the_tokenizer_is_read() {
    let bytes = tokenizer_file()
        .key("tokenizer.ggml.merges", TestValue::Texts(&["a b"]))
        .key("tokenizer.ggml.padding_token_id", TestValue::U32(u32::MAX))
        .key("tokenizer.chat_template", TestValue::Text("{{ x }}"))
        .key("tokenizer.chat_template.tool_use", TestValue::Text("{{ y }}"))
        .bytes();
    let data = tokenizer::read(&Header::read("x.gguf", &bytes).unwrap()).unwrap().unwrap();
    let expected = TokenizerData {
        model: "llama".to_owned(),
        tokens: ["<unk>", "<s>", "a", "\u{2581}b"].map(str::to_owned).to_vec(),
        scores: vec![0.0, 0.0, -1.0, -2.5],
        kinds: vec![PieceKind::Unknown, PieceKind::Control, PieceKind::Normal, PieceKind::Normal],
        merges: vec!["a b".to_owned()],
        special: SpecialTokenIds { bos: Some(1), ..SpecialTokenIds::default() },
        add_space_prefix: Some(false),
        chat_template: Some("{{ x }}".to_owned()),
        named_templates: vec![("tool_use".to_owned(), "{{ y }}".to_owned())],
        ..TokenizerData::default()
    };
    assert_eq!(data, expected);
    let none = sample(3).bytes();
    assert_eq!(tokenizer::read(&Header::read("x.gguf", &none).unwrap()).unwrap(), None);
}

#[test]
fn contradictions_in_the_tokenizer_are_named() {
    let refused = |file: TestFile| {
        let bytes = file.bytes();
        tokenizer::read(&Header::read("x.gguf", &bytes).unwrap()).unwrap_err().to_string()
    };
    let base = || {
        TestFile::new(3)
            .key("tokenizer.ggml.model", TestValue::Text("llama"))
            .key("tokenizer.ggml.tokens", TestValue::Texts(&["a", "b"]))
    };
    let lengths = refused(base().key("tokenizer.ggml.scores", TestValue::F32s(&[1.0])));
    assert!(lengths.ends_with("the key tokenizer.ggml.scores has 1 entries for 2 tokens"), "{lengths}");
    let nan = refused(base().key("tokenizer.ggml.scores", TestValue::F32s(&[1.0, f32::NAN])));
    assert!(nan.ends_with("the key tokenizer.ggml.scores is NaN, which is no usable number"), "{nan}");
    let kind = refused(base().key("tokenizer.ggml.token_type", TestValue::I32s(&[1, 9])));
    assert!(kind.ends_with("tokenizer.ggml.token_type has the unknown kind 9 for token 1"), "{kind}");
    let id = refused(base().key("tokenizer.ggml.eos_token_id", TestValue::U32(2)));
    assert!(id.ends_with("tokenizer.ggml.eos_token_id is 2, but there are only 2 tokens"), "{id}");
    let none = refused(TestFile::new(3).key("tokenizer.ggml.model", TestValue::Text("gpt2")));
    assert!(none.contains("the key tokenizer.ggml.tokens is missing"), "{none}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A changed or cut file is read or refused, and every range of a tensor lies in the file.
    #[test]
    fn damaged_files_never_panic(
        version in 1u32..=3, changes in prop::collection::vec((0usize..4096, any::<u8>()), 0..6),
        cut in prop::option::of(0usize..4096),
    ) {
        let mut bytes = sample(version).bytes();
        bytes.extend(tokenizer_file().bytes());
        if version == 3 {
            bytes = tokenizer_file().tensor("t", &[32, 2], 8, &[1; 68]).bytes();
        }
        let len = bytes.len();
        changes.into_iter().for_each(|(at, byte)| bytes[at % len] = byte);
        bytes.truncate(cut.map_or(len, |cut| cut % len));
        if let Ok(header) = Header::read("x.gguf", &bytes) {
            prop_assert!(header.tensors.iter().all(|tensor| tensor.range.end <= bytes.len()));
            let _ = tokenizer::read(&header);
        }
    }
}
