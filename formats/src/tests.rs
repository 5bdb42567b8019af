use std::fs;
use std::path::Path;

use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};

use crate::header;
use crate::{Checkpoint, DType, Error, Source};

/// A valid file with three tensors, written by the `safetensors` crate.
fn valid() -> Vec<u8> {
    let data: Vec<u8> = (0..48).collect();
    let tensors = [
        ("a.weight", TensorView::new(Dtype::F32, vec![2, 3], &data[..24]).unwrap()),
        ("b.bias", TensorView::new(Dtype::BF16, vec![4], &data[24..32]).unwrap()),
        ("c.index", TensorView::new(Dtype::I64, vec![1], &data[40..48]).unwrap()),
    ];
    safetensors::serialize(tensors, None).unwrap()
}

/// A file with this header and `data` bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0; data]);
    bytes
}

fn open_file(bytes: &[u8]) -> Result<Checkpoint, Error> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    Checkpoint::open(&Source::Directory(folder.path().to_owned()))
}

/// Opens a folder with these files and gives back the error, without the folder's name.
fn refusal(files: &[(&str, &[u8])]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let error = Checkpoint::open(&Source::Directory(folder.path().to_owned())).unwrap_err();
    error
        .to_string()
        .replace(&format!("{}/", folder.path().display()), "")
        .replace(&folder.path().display().to_string(), "FOLDER")
}

#[test]
fn tensors_are_counted_before_they_are_read() {
    let header = format!("{{{}", "{".repeat(600_000));
    let text = refusal(&[("model.safetensors", &file(&header, 0))]);
    assert!(text.contains("its header has up to 600000 tensors, where at most 524288 are allowed"), "{text}");
}

#[test]
fn a_valid_file_gives_its_tensors() {
    let checkpoint = open_file(&valid()).unwrap();
    let a = checkpoint.tensor("a.weight", &[2, 3]).unwrap();
    assert_eq!((a.dtype, a.shape, a.bytes), (&DType::F32, &[2, 3][..], &(0..24).collect::<Vec<u8>>()[..]));
    let b = checkpoint.tensor("b.bias", &[4]).unwrap();
    assert_eq!((b.dtype, b.shape, b.bytes), (&DType::BF16, &[4][..], &(24..32).collect::<Vec<u8>>()[..]));
    // The data outlives the checkpoint.
    let shared = b.shared_bytes();
    drop(checkpoint);
    assert_eq!(shared, (24..32).collect::<Vec<u8>>());
    let checkpoint = open_file(&valid()).unwrap();
    let infos: Vec<_> =
        checkpoint.tensors().map(|t| (t.name, t.dtype.to_string(), t.shape, t.bytes, t.file)).collect();
    let info = |name: &str, dtype: &str, shape: &[usize], bytes| {
        (name.to_owned(), dtype.to_owned(), shape.to_vec(), bytes, "model.safetensors".to_owned())
    };
    assert_eq!(
        infos,
        [
            info("a.weight", "F32", &[2, 3], 24),
            info("b.bias", "BF16", &[4], 8),
            info("c.index", "I64", &[1], 8)
        ]
    );
}

#[test]
fn files_inside_the_program_are_read_like_those_of_a_folder() {
    let files: &'static [_] = vec![("model.safetensors", &*valid().leak())].leak();
    let checkpoint = Checkpoint::open(&Source::Memory(files)).unwrap();
    assert_eq!(checkpoint.tensor("a.weight", &[2, 3]).unwrap().bytes[5], 5);
    let empty = Checkpoint::open(&Source::Memory(&[])).unwrap_err();
    assert!(empty.to_string().starts_with("the built-in model has no model.safetensors"), "{empty}");
}

#[test]
fn tensors_of_another_shape_are_refused_by_name() {
    let checkpoint = open_file(&valid()).unwrap();
    let refusal = |name, shape: &[usize]| checkpoint.tensor(name, shape).unwrap_err().to_string();
    let shape = refusal("a.weight", &[3, 2]);
    assert!(
        shape.starts_with("tensor a.weight in ") && shape.contains("model.safetensors has shape [2, 3]"),
        "{shape}"
    );
    assert!(shape.ends_with("expected [3, 2] by config.json"), "{shape}");
    let missing = refusal("d.weight", &[1]);
    assert!(missing.starts_with("tensor d.weight (shape [1]) is needed"), "{missing}");
}

#[test]
fn a_file_with_an_unknown_element_type_opens() {
    let header = r#"{"x":{"dtype":"F5","shape":[7],"data_offsets":[0,3]}}"#;
    let checkpoint = open_file(&file(header, 3)).unwrap();
    let tensor = checkpoint.tensor("x", &[7]).unwrap();
    assert_eq!((tensor.dtype, tensor.bytes.len()), (&DType::Unknown("F5".to_owned()), 3));
    assert_eq!(checkpoint.tensors().next().unwrap().dtype.to_string(), "F5");
}

#[test]
fn bad_files_are_refused_with_file_and_tensor() {
    let huge = u64::MAX.to_le_bytes();
    let mut beyond = 1000u64.to_le_bytes().to_vec();
    beyond.extend(b"{}");
    let tensor = |body: &str, data| file(&format!(r#"{{"x":{body}}}"#), data);
    let cases: &[(Vec<u8>, &str)] = &[
        (
            vec![],
            "model.safetensors is not a usable safetensors file: it has only 0 bytes; download it again",
        ),
        (
            b"PK".to_vec(),
            "model.safetensors is not a usable safetensors file: it has only 2 bytes; download it again",
        ),
        (
            huge.to_vec(),
            "its first bytes announce a header of 18446744073709551615 bytes, where at most 100000000",
        ),
        (beyond, "it announces a header of 1000 bytes but has only 10 bytes in all; download it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0".to_vec(), "it is a Git LFS pointer"),
        (file("{", 0), "its header cannot be parsed: EOF"),
        (file("[]", 0), "its header cannot be parsed: invalid type: sequence, expected an object"),
        (file("\u{0}", 0), "its header cannot be parsed: expected value"),
        (tensor("3", 0), "its header cannot be parsed: x: invalid type: integer"),
        (tensor(r#"{"dtype":"F32","shape":[1]}"#, 0), "x: missing field `data_offsets`"),
        (tensor(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#, 4), "x: invalid value: integer `-1`"),
        (
            tensor(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#, 4),
            "tensor x in model.safetensors ends at byte 0, before its begin at 4; the file is damaged",
        ),
        (
            tensor(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, 7),
            "tensor x in model.safetensors reaches to byte 8 of the data, but the file has only 7 bytes of data",
        ),
        (
            tensor(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}"#, 8),
            "tensor x in model.safetensors reaches to byte 18446744073709551615 of the data",
        ),
        (
            tensor(r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}"#, 4),
            "tensor x in model.safetensors has the impossible shape [4294967296, 4294967296]",
        ),
        (
            tensor(r#"{"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,0]}"#, 0),
            "tensor x in model.safetensors has 0 bytes, but F32 of shape [4611686018427387904, 2] takes",
        ),
        (
            tensor(r#"{"dtype":"F16","shape":[2,2],"data_offsets":[0,4]}"#, 4),
            "tensor x in model.safetensors has 4 bytes, but F16 of shape [2, 2] takes 8; the file is damaged",
        ),
        (
            tensor(r#"{"dtype":"F4","shape":[3],"data_offsets":[0,1]}"#, 1),
            "tensor x in model.safetensors has 1 bytes, but F4 of shape [3] does not fill whole bytes",
        ),
        (
            tensor(r#"{"dtype":"U8","shape":[2],"data_offsets":[1,3]}"#, 3),
            "bytes 0 to 1 of its data belong to no tensor",
        ),
        (
            tensor(r#"{"dtype":"U8","shape":[2],"data_offsets":[0,2]}"#, 3),
            "bytes 2 to 3 of its data belong to no tensor",
        ),
        (
            file(
                r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
                3,
            ),
            "tensor y in model.safetensors shares bytes with x; the file is damaged",
        ),
        (
            file(
                r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"x":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#,
                4,
            ),
            "tensor x in model.safetensors is listed twice; the file is damaged",
        ),
    ];
    for (bytes, expected) in cases {
        let text = refusal(&[("model.safetensors", bytes)]);
        assert!(text.contains(expected), "{text}\nshould contain\n{expected}");
        assert!(text.contains("model.safetensors"), "{text} does not name the file");
    }
}

#[test]
fn empty_tensors_and_metadata_are_fine() {
    let header = r#"{"__metadata__":{"dtype":"F32"},"e":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]}}"#;
    let checkpoint = open_file(&file(header, 0)).unwrap();
    assert_eq!(checkpoint.tensor("e", &[0, 9]).unwrap().bytes.len(), 0);
}

#[test]
fn an_index_spreads_tensors_over_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let index = r#"{"metadata":{},"weight_map":{"x":"one.safetensors","a.weight":"two.safetensors"}}"#;
    write("model.safetensors.index.json", index.as_bytes());
    write("one.safetensors", &file(r#"{"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}"#, 2));
    write("two.safetensors", &valid());
    let checkpoint = Checkpoint::open(&Source::Directory(folder.path().to_owned())).unwrap();
    assert_eq!(checkpoint.tensor("x", &[1]).unwrap().dtype, &DType::F16);
    assert_eq!(checkpoint.tensor("a.weight", &[2, 3]).unwrap().bytes[7], 7);
    assert!(!checkpoint.contains("b.bias"), "a tensor that the index does not list is not part of the model");
    let files: Vec<_> = checkpoint.files().map(|(name, _)| name).collect();
    assert_eq!(files, ["one.safetensors", "two.safetensors"]);
}

#[test]
fn bad_indices_are_refused() {
    let index = "model.safetensors.index.json";
    let good = valid();
    let cases: &[(&str, &str)] = &[
        ("{", "the index cannot be parsed: EOF"),
        ("{}", "the index cannot be parsed: missing field `weight_map`"),
        (r#"{"weight_map":{}}"#, "weight_map is empty"),
        (r#"{"weight_map":{"x":7}}"#, "x: invalid type: integer `7`, expected a string"),
        (
            r#"{"weight_map":{"x":"../one.safetensors"}}"#,
            r#"tensor x is listed in "../one.safetensors", which is not the plain name"#,
        ),
        (r#"{"weight_map":{"x":"/etc/x.safetensors"}}"#, r#"tensor x is listed in "/etc/x.safetensors""#),
        (r#"{"weight_map":{"x":"passwd"}}"#, r#"tensor x is listed in "passwd""#),
        (
            r#"{"weight_map":{"x":"nine.safetensors"}}"#,
            "it names nine.safetensors for tensor x, but that file does not exist; download it",
        ),
        (
            r#"{"weight_map":{"x":"one.safetensors"}}"#,
            "tensor x should be in one.safetensors, but that file does not have it",
        ),
        (
            r#"{"weight_map":{"b.bias":"one.safetensors","b.bias":"one.safetensors"}}"#,
            "tensor b.bias is listed twice",
        ),
        (
            r#"{"weight_map":{"b.bias":"one.safetensors","b.bias":"two.safetensors"}}"#,
            "tensor b.bias is listed twice",
        ),
    ];
    for (text, expected) in cases {
        let files = [(index, text.as_bytes()), ("one.safetensors", &good), ("two.safetensors", &good)];
        let text = refusal(&files);
        assert!(
            text.starts_with("model.safetensors.index.json: ") && text.contains(expected),
            "{text}\n{expected}"
        );
    }
    let files =
        [(index, &br#"{"weight_map":{"x":"one.safetensors"}}"#[..]), ("one.safetensors", b"12345678")];
    assert!(refusal(&files).starts_with("one.safetensors is not a usable"), "{}", refusal(&files));
}

#[test]
fn folders_without_the_usual_names_are_used_or_explained() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("weights.safetensors"), valid()).unwrap();
    assert!(Checkpoint::open(&Source::Directory(folder.path().to_owned())).unwrap().contains("a.weight"));

    let start = "FOLDER has no model.safetensors and no model.safetensors.index.json; ";
    assert_eq!(refusal(&[]), format!("{start}download the weights"));
    let two = refusal(&[("a.safetensors", b""), ("b.safetensors", b"")]);
    assert!(
        two.starts_with(&format!("{start}it has a.safetensors, b.safetensors and perhaps more")),
        "{two}"
    );
    let bin = refusal(&[("model.pt", b"")]);
    assert!(bin.starts_with(&format!("{start}it has model.pt, but of PyTorch's files only ")), "{bin}");
}

#[test]
fn folders_without_a_checkpoint_are_explained() {
    let config = |path: &Path| Source::Directory(path.to_owned()).config().unwrap_err().to_string();
    assert!(
        config(Path::new("/no/such")).starts_with("/no/such is not a folder; give the folder that holds")
    );
    let folder = tempfile::tempdir().unwrap();
    let text = config(folder.path());
    assert!(text.contains("config.json does not exist; is "), "{text}");
    fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    let error = Checkpoint::open(&Source::Directory(folder.path().to_owned())).unwrap_err().to_string();
    assert!(error.starts_with("cannot read ") && error.contains("model.safetensors"), "{error}");
}

/// A checkpoint with one tensor of a megabyte.
fn megabyte(folder: &Path) -> Checkpoint {
    let header = r#"{"x":{"dtype":"F32","shape":[512,512],"data_offsets":[0,1048576]}}"#;
    let mut bytes = file(header, 0);
    bytes.resize(bytes.len() + (1 << 20), 7);
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
    fs::write(folder.join("config.json"), "{}").unwrap();
    Checkpoint::open(&Source::Directory(folder.to_owned())).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_is_truncated_while_it_is_mapped_is_an_error_and_no_crash() {
    let folder = tempfile::tempdir().unwrap();
    for kept in [0, 5000, 200_000] {
        let (cut, sound) = (megabyte(folder.path()), tempfile::tempdir().unwrap());
        let sound_checkpoint = megabyte(sound.path());
        cut.verify().unwrap();
        fs::File::options()
            .write(true)
            .open(folder.path().join("model.safetensors"))
            .unwrap()
            .set_len(kept)
            .unwrap();
        let bytes = cut.tensor("x", &[512, 512]).unwrap().bytes;
        // Several threads read at once, as when weights are packed.
        std::thread::scope(|scope| {
            for part in bytes.chunks(1 << 18) {
                scope.spawn(move || assert!(part.iter().all(|byte| [0, 7].contains(byte))));
            }
        });
        assert_eq!(bytes.last(), Some(&0));
        for error in [cut.check_readable().unwrap_err(), cut.verify().unwrap_err()] {
            let text = error.to_string();
            assert!(
                text.contains("model.safetensors could not be read to its end: it was truncated"),
                "{text}"
            );
        }
        // Other mappings are not affected.
        let other = sound_checkpoint.tensor("x", &[512, 512]).unwrap().bytes;
        assert!(other.iter().all(|byte| *byte == 7));
        sound_checkpoint.verify().unwrap();
    }
}

#[test]
fn a_file_that_is_replaced_is_noticed_and_one_that_is_missing_may_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let source = Source::Directory(folder.path().to_owned());
    let checkpoint = megabyte(folder.path());
    let identity = checkpoint.identity().to_owned();
    assert_eq!(identity.lines().count(), 2, "{identity}");
    source.check_unchanged(&identity).unwrap();

    let elsewhere = tempfile::tempdir().unwrap();
    let beside = elsewhere.path().join("a file.bin");
    fs::write(&beside, [1, 2, 3]).unwrap();
    let both = identity.clone() + &crate::identity_of([&beside, &elsewhere.path().join("no file")]);
    assert_eq!(both.lines().count(), 3, "{both}");
    source.check_unchanged(&both).unwrap();
    fs::write(&beside, [1, 2, 3, 4]).unwrap();
    for source in [&source, &Source::Memory(&[])] {
        let text = source.check_unchanged(&both).unwrap_err().to_string();
        assert!(text.contains("a file.bin has been changed since this server read it"), "{text}");
    }

    let away = folder.path().join("away");
    fs::rename(&path, &away).unwrap();
    source.check_unchanged(&identity).unwrap();
    fs::rename(&away, &path).unwrap();
    source.check_unchanged(&identity).unwrap();
    checkpoint.verify().unwrap();

    // Another file of the same size replaces it.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    fs::write(&away, fs::read(&path).unwrap()).unwrap();
    fs::File::options().write(true).open(&away).unwrap().set_modified(later).unwrap();
    fs::rename(&away, &path).unwrap();
    for error in [checkpoint.verify().unwrap_err(), source.check_unchanged(&identity).unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("model.safetensors has been changed since this server read it"), "{text}");
        assert!(text.contains("Restart it"), "{text}");
    }
    source.check_unchanged("").unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn files_that_are_not_regular_are_refused_without_waiting() {
    for name in ["config.json", "model.safetensors", "model.safetensors.index.json"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let source = Source::Directory(folder.path().to_owned());
        let (told, text) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let config = source.config().map(|_| ());
            let opened = if name == "config.json" { config } else { Checkpoint::open(&source).map(|_| ()) };
            told.send(opened.unwrap_err().to_string())
        });
        let long = millrace_test_patience::patience(std::time::Duration::from_secs(120));
        let text = text.recv_timeout(long).expect("a FIFO is not waited for");
        assert!(text.contains(name) && text.ends_with("it is not a regular file"), "{text}");
    }
}

#[test]
fn a_configuration_of_absurd_size_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::File::create(folder.path().join("config.json")).unwrap().set_len(1 << 33).unwrap();
    let text = Source::Directory(folder.path().to_owned()).config().unwrap_err().to_string();
    assert!(text.contains("config.json has 8589934592 bytes, more than the 16777216"), "{text}");
}

/// Checks that reading any bytes never panics, and that an error names the file.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    match header::read("some/model.safetensors", bytes) {
        Err(error) => prop_assert!(error.to_string().contains("some/model.safetensors"), "{error}"),
        Ok(entries) => {
            for entry in entries {
                prop_assert!(bytes.get(entry.range.clone()).is_some(), "{entry:?} lies outside");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = valid();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        check(&bytes)?;
    }

    #[test]
    fn truncated_files_are_refused(length in any::<prop::sample::Index>()) {
        let bytes = valid();
        let cut = &bytes[..length.index(bytes.len())];
        check(cut)?;
        prop_assert!(header::read("f", cut).is_err());
    }

    #[test]
    fn any_numbers_are_checked(
        tensors in prop::collection::vec(
            (prop::sample::select(vec!["F32", "U8", "F4", "?"]), prop::collection::vec(number(), 0..4), number(), number()),
            0..4,
        ),
        data in 0usize..40,
    ) {
        let rows: Vec<String> = tensors
            .iter()
            .enumerate()
            .map(|(i, (dtype, shape, begin, end))| {
                format!(r#""t{i}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
            })
            .collect();
        check(&file(&format!("{{{}}}", rows.join(",")), data))?;
    }

    #[test]
    fn any_file_opens_or_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..64), length in 0u64..80) {
        check(&bytes)?;
        let mut framed = length.to_le_bytes().to_vec();
        framed.extend(bytes);
        check(&framed)?;
    }
}

/// Small numbers, and numbers at the limits of types.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..20, Just(u64::MAX), Just(1 << 32), Just(1 << 62), Just(u64::MAX / 2 + 1)]
}
