//! Files that PyTorch wrote (`fuzz/seeds/pytorch`), damaged ones, and ones that no PyTorch writes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Checkpoint, Source};

const STATE: &[u8] = include_bytes!("../../../fuzz/seeds/pytorch/state");
const TRANSPOSED: &[u8] = include_bytes!("../../../fuzz/seeds/pytorch/transposed");
const OLD: &[u8] = include_bytes!("../../../fuzz/seeds/pytorch/legacy");

fn refusal(file: &[u8]) -> String {
    read("some.bin", file).unwrap_err().to_string()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Returns an archive with these entries, all stored.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let start = bytes.len() as u32;
        let size = (data.len() as u32).to_le_bytes();
        let sizes = [[0; 4], size, size].concat();
        let name_length = (name.len() as u16).to_le_bytes();
        bytes.extend([zip::MAGIC, &[0u8; 10][..], &sizes, &name_length, &[0; 2]].concat());
        bytes.extend(name.as_bytes());
        bytes.extend(*data);
        directory.extend([&b"PK\x01\x02"[..], &[0; 12], &sizes, &name_length, &[0; 12]].concat());
        directory.extend(start.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, length, count) = (bytes.len() as u32, directory.len() as u32, entries.len() as u16);
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    bytes.extend([length.to_le_bytes(), start.to_le_bytes()].concat());
    bytes.extend([0; 2]);
    bytes
}

fn of_pickle(pickle: &[u8]) -> Vec<u8> {
    archive(&[("x/data.pkl", pickle), ("x/data/0", &[0; 16])])
}

#[test]
fn tensors_are_those_that_were_saved() {
    let entries = read("some.bin", STATE).unwrap();
    let found: BTreeMap<&str, (&DType, &[usize], &[u8])> = entries
        .iter()
        .map(|entry| (&entry.name[..], (&entry.dtype, &entry.shape[..], &STATE[entry.range.clone()])))
        .collect();
    let is_f32 = |name: &str, shape: &[usize], want: &[f32]| {
        let (dtype, sizes, bytes) = found[name];
        assert_eq!((dtype, sizes, &floats(bytes)[..]), (&DType::F32, shape, want), "{name}");
    };
    is_f32("weight", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    is_f32("bias", &[2], &[5.0, 6.0]);
    is_f32("parameter", &[1], &[7.0]);
    is_f32("empty", &[0, 3], &[]);
    let base: Vec<f32> = (0..12).map(|i| i as f32).collect();
    is_f32("base", &[3, 4], &base);
    // A view that begins within the storage of another tensor.
    is_f32("rows", &[2, 4], &base[4..]);
    assert_eq!(found["half"], (&DType::F16, &[3][..], &[0, 0x40, 0, 0x40, 0, 0x40][..]));
    assert_eq!(found["brain"], (&DType::BF16, &[3][..], &[0x80, 0xbf, 0x80, 0xbf, 0x80, 0xbf][..]));
    assert_eq!(found["scalar"], (&DType::I64, &[][..], &3i64.to_le_bytes()[..]));
    assert_eq!(found["bytes"], (&DType::U8, &[3][..], &[1, 2, 255][..]));
    assert_eq!(found.len(), 10);
}

#[test]
fn what_is_no_dictionary_of_tensors_is_refused_by_name() {
    let view = refusal(TRANSPOSED);
    assert!(view.contains("the tensor view has the strides [1, 4] for the shape [4, 3]"), "{view}");
    assert!(view.contains("`.contiguous()`"), "{view}");
    assert!(refusal(OLD).contains("the format from before PyTorch 1.6"), "{}", refusal(OLD));

    let call = refusal(&of_pickle(b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R."));
    assert!(call.contains("its data.pkl has posix.system, which no dictionary of tensors has"), "{call}");
    let instance = refusal(&of_pickle(b"\x80\x02(i__main__\nX\n."));
    assert!(instance.contains("the instruction 0x69 at byte 3"), "{instance}");
    let other = refusal(&of_pickle(b"\x80\x04."));
    assert!(other.contains("it has version 4, and this program knows pickle protocol 2"), "{other}");
    let list = refusal(&of_pickle(b"\x80\x02]."));
    assert!(list.contains("it is not a dictionary of tensors by name"), "{list}");
    let number = refusal(&of_pickle(b"\x80\x02}X\x01\0\0\0aK\x01s."));
    assert!(number.contains("the tensor a is no tensor"), "{number}");
}

/// The copies of the name would have 50 GB.
#[test]
fn a_name_that_is_recalled_many_times_is_copied_once() {
    let name = vec![b'n'; 1 << 20];
    let text = |text: &[u8]| [b"X", &(text.len() as u32).to_le_bytes()[..], text].concat();
    let storage =
        [&b"("[..], &text(b"storage"), b"ctorch\nFloatStorage\n", &text(b"0"), &text(b"cpu"), b"K\x01tQ"]
            .concat();
    let rest = b"K\0K\x01\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR";
    let tensor = [&b"ctorch._utils\n_rebuild_tensor_v2\n("[..], &storage, rest].concat();
    let first = [&text(&name)[..], b"q\0", &tensor, b"q\x01"].concat();
    let pickle = [&b"\x80\x02}("[..], &first, &b"h\0h\x01".repeat(50_000), b"u."].concat();
    let entries = read("some.bin", &of_pickle(&pickle)).unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].name.len(), &entries[0].shape[..]), (1 << 20, &[1][..]));
}

#[test]
fn damaged_archives_are_explained() {
    assert!(refusal(b"PK\x03\x04").contains("it has no directory at its end"));
    let cut = refusal(&STATE[..STATE.len() - 30]);
    assert!(cut.contains("it is incomplete, download it again"), "{cut}");
    assert!(refusal(b"{}").contains("it is no archive as torch.save writes it"));
    assert!(refusal(&archive(&[("x/a", b"")])).contains("an archive without data.pkl"));
    let twice = refusal(&archive(&[("x/data.pkl", b"}."), ("x/data.pkl", b"}.")]));
    assert!(twice.contains("the entry x/data.pkl is there twice"), "{twice}");
    let big = refusal(&archive(&[("x/data.pkl", b"}."), ("x/byteorder", b"big")]));
    assert!(big.contains("big-endian"), "{big}");
    let mut compressed = of_pickle(b"\x80\x02}.");
    let directory = compressed.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    compressed[directory + 10] = 8;
    assert!(refusal(&compressed).contains("its entry x/data.pkl is compressed or encrypted"));
    // A tensor of more elements than its storage has.
    let pickle = |size: u8| {
        let storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0\x30X\x03\0\0\0cpuK\x04tQ";
        let tensor = [
            &b"ctorch._utils\n_rebuild_tensor_v2\n("[..],
            storage,
            b"K\0K",
            &[size],
            b"\x85K\x01\x85\x89}tR",
        ]
        .concat();
        [&b"\x80\x02}X\x01\0\0\0a"[..], &tensor, b"s."].concat()
    };
    assert_eq!(read("some.bin", &of_pickle(&pickle(4))).unwrap()[0].shape, [4]);
    let short = refusal(&of_pickle(&pickle(5)));
    assert!(short.contains("tensor a in some.bin reaches to byte 20 of the data"), "{short}");
}

#[test]
fn values_that_contain_themselves_and_endless_lists_end() {
    // A list that is its own element.
    assert!(refusal(&of_pickle(b"\x80\x02]q\0h\0a.")).contains("not a dictionary"));
    let many = [&b"\x80\x02"[..], &vec![b'N'; (1 << 22) + 1]].concat();
    assert!(refusal(&of_pickle(&many)).contains("it announces 4194305 values, more than the limit"));
    let deep = [&b"\x80\x02"[..], &vec![b'('; 2000]].concat();
    assert!(refusal(&of_pickle(&deep)).contains("nested more than 1024 times"));
}

#[test]
fn folders_with_pytorch_files_are_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::Directory(folder.path().to_owned());
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let index = br#"{"metadata": {}, "weight_map": {"base": "pytorch_model-00001-of-00001.bin"}}"#;
    write("pytorch_model-00001-of-00001.bin", STATE);
    write("pytorch_model.bin.index.json", index);
    let checkpoint = Checkpoint::open(&source).unwrap();
    assert_eq!(checkpoint.tensors().count(), 1);
    assert_eq!(floats(checkpoint.tensor("base", &[3, 4]).unwrap().bytes)[11], 11.0);

    write("pytorch_model.bin.index.json", br#"{"weight_map": {"a": "../x.bin"}}"#);
    let outside = Checkpoint::open(&source).unwrap_err().to_string();
    assert!(outside.contains("not the plain name of a file that ends with .bin"), "{outside}");

    write("pytorch_model.bin", STATE);
    let checkpoint = Checkpoint::open(&source).unwrap();
    assert_eq!(checkpoint.tensors().count(), 10);
    assert!(checkpoint.verify().is_ok());
    // safetensors come first.
    let header = br#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    write("other.safetensors", &[&(header.len() as u64).to_le_bytes()[..], header, &[1]].concat());
    assert!(Checkpoint::open(&source).unwrap().contains("x"));

    let file = Source::File(folder.path().join("pytorch_model.bin")).config().unwrap_err().to_string();
    assert!(file.contains("give the folder that holds it as pytorch_model.bin"), "{file}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_is_cut_while_it_is_mapped_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pytorch_model.bin");
    let large = archive(&[("x/data.pkl", b"\x80\x02}."), ("x/data/0", &vec![7; 100_000])]);
    std::fs::write(&path, large).unwrap();
    let source = Source::Directory(folder.path().to_owned());
    let file = source.map("pytorch_model.bin").unwrap().unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    // The directory at the end reads as zeros, but that is not the reason to report.
    assert!(read("some.bin", &file).is_err());
    assert!(matches!(file.check_readable(), Err(Error::Cut { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_bytes_never_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = STATE.to_vec();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if is_cut {
            bytes.truncate(length.index(bytes.len()));
        }
        crate::fuzz::pytorch(&bytes);
    }
}
