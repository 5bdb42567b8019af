//! Files that are written here, and damaged ones.

use proptest::prelude::*;

use super::*;

const WORDS: [i32; 7] = [8, 12, 2, 4, 2, 10, 6];

/// Returns a file whose words are their own indices, for the sizes of [`WORDS`].
fn file(version: i32, shared: bool) -> Vec<u8> {
    let words = |vocab: i32| {
        WORDS
            .iter()
            .enumerate()
            .map(move |(i, &word)| if i == 5 { vocab } else { word })
            .flat_map(i32::to_le_bytes)
    };
    let (norms, others) = (2 * 8 * 2 + 8, 2 * (8 * 8 * 2 + 4 * 8 * 2 + 12 * 8 * 3) + 10 * 8);
    let others = others + if shared { 0 } else { 10 * 8 };
    let floats = |count: usize| (0..count).flat_map(|i| (i as f32).to_le_bytes());
    match version {
        0 => {
            let vocab = if shared { 10 } else { -10 };
            words(vocab).chain(floats(norms + others + 6 * 2)).collect()
        }
        _ => {
            let mut bytes: Vec<u8> = b"24ka".iter().copied().chain(version.to_le_bytes()).collect();
            bytes.extend(words(10));
            bytes.push(shared.into());
            if version == 2 {
                bytes.extend(4i32.to_le_bytes());
            }
            bytes.resize(256, 0);
            bytes.extend(floats(norms));
            match version {
                2 => bytes.extend(vec![1; others + others / 4 * 4]),
                _ => bytes.extend(floats(others)),
            }
            bytes
        }
    }
}

fn read(bytes: &[u8]) -> Result<(Sizes, Vec<Entry>), FileFault> {
    if bytes.starts_with(MAGIC) { versioned(bytes) } else { legacy(bytes) }
}

fn entry<'a>(entries: &'a [Entry], name: &str) -> &'a Entry {
    entries.iter().find(|entry| entry.name == name).unwrap()
}

#[test]
fn tensors_are_where_the_exporter_puts_them() {
    for shared in [true, false] {
        let (sizes, legacy) = read(&file(0, shared)).unwrap();
        assert_eq!((sizes.shared, sizes.vocab, sizes.group), (shared, 10, None));
        let start = |name: &str| (entry(&legacy, name).range.start - 28) / 4;
        assert_eq!(start("model.embed_tokens.weight"), 0);
        assert_eq!(start("model.layers.1.input_layernorm.weight"), 80 + 8);
        assert_eq!(start("model.layers.1.self_attn.k_proj.weight"), 80 + 16 + 128 + 32);
        assert_eq!(entry(&legacy, "model.layers.1.self_attn.k_proj.weight").shape, [4, 8]);
        // The table of the rotation lies between the last norm and the head.
        let norm = start("model.norm.weight");
        assert_eq!(legacy.iter().any(|entry| entry.name == "lm_head.weight"), !shared);
        if !shared {
            assert_eq!(start("lm_head.weight"), norm + 8 + 12);
        }

        let (_, first) = read(&file(1, shared)).unwrap();
        let start = |name: &str| (entry(&first, name).range.start - 256) / 4;
        assert_eq!(start("model.layers.0.post_attention_layernorm.weight"), 16);
        assert_eq!(start("model.norm.weight"), 32);
        assert_eq!(start("model.embed_tokens.weight"), 40);
        assert_eq!(start("model.layers.0.mlp.down_proj.weight"), 40 + 80 + 384 + 2 * 96);

        let (sizes, second) = read(&file(2, shared)).unwrap();
        assert_eq!(sizes.group, Some(4));
        let embedding = entry(&second, "model.embed_tokens.weight");
        assert_eq!((embedding.dtype.clone(), embedding.range.clone()), (DType::I8, 416..496));
        let scales = entry(&second, "model.embed_tokens.weight_scale");
        assert_eq!((&scales.shape[..], scales.range.clone()), (&[10, 2][..], 496..576));
    }
}

#[test]
fn damaged_files_are_named() {
    let refused = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    let mut bytes = file(1, true);
    bytes.push(0);
    assert!(refused(&bytes).starts_with("1 bytes follow its last tensor"), "{}", refused(&bytes));
    bytes.truncate(1000);
    assert!(refused(&bytes).starts_with("the data of a tensor at byte"), "{}", refused(&bytes));
    let mut huge = file(1, true);
    huge[8..12].copy_from_slice(&i32::MAX.to_le_bytes());
    assert_eq!(refused(&huge), "the key dim is 2147483647, but must be from 1 to 1048576");
    let mut version = file(1, true);
    version[4] = 9;
    assert_eq!(refused(&version), "it has version 9, and this program knows 0, 1 and 2");
    let mut group = file(2, true);
    group[37] = 3;
    assert!(refused(&group).contains("group_size is 3, but must divide dim = 8 and hidden_dim = 12"));
    assert!(!is_legacy(b"") && !is_legacy(&[0; 28]) && !is_legacy(&file(0, true)[..500]));
}

proptest! {
    #[test]
    fn damaged_files_never_panic(
        version in 0i32..3, changes in prop::collection::vec((0usize..300, any::<u8>()), 1..6), cut in 0usize..5000,
    ) {
        let mut bytes = file(version, false);
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes.truncate(cut.max(300));
        if let Ok((_, entries)) = read(&bytes) {
            prop_assert!(entries.iter().all(|entry| entry.range.end <= bytes.len()));
        }
    }
}

/// The header and the parts of a file that is written are those that are read.
#[test]
fn written_files_are_read_back() {
    for (version, shared) in [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false)] {
        let model = Llama2cModel {
            dim: 8,
            hidden: 12,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            vocab: 10,
            positions: 6,
            shared,
            version,
        };
        model.check().unwrap();
        let mut bytes = model.header();
        let mut places = Vec::new();
        for item in model.items() {
            if let Llama2cItem::Floats { name, .. } | Llama2cItem::Groups { name, .. } = &item {
                places.push((name.clone(), bytes.len()));
            }
            match &item {
                Llama2cItem::Bytes(part) => bytes.extend(part),
                _ => bytes.resize(bytes.len() + item.bytes(), 0),
            }
        }
        let (sizes, entries) = read(&bytes).unwrap();
        assert_eq!((sizes.shared, sizes.positions, sizes.group), (shared, 6, (version == 2).then_some(4)));
        let found = entries.iter().filter(|entry| !entry.name.ends_with("_scale"));
        let found: Vec<(String, usize)> = found.map(|e| (e.name.clone(), e.range.start)).collect();
        assert_eq!(found, places, "version {version}");
        let head = if version == 0 { 28 } else { 41 };
        // A file of the tests above has the same length and header.
        let other = file(version as i32, shared);
        assert_eq!((bytes.len(), &bytes[..head]), (other.len(), &other[..head]), "{version}");
    }
    let model = Llama2cModel {
        dim: 9,
        hidden: 12,
        layers: 2,
        heads: 3,
        kv_heads: 2,
        vocab: 0,
        positions: 6,
        shared: true,
        version: 1,
    };
    assert_eq!(model.check().unwrap_err(), "vocab_size would be 0, and must be from 1 to 16777216");
    let odd = Llama2cModel { vocab: 1, ..model }.check().unwrap_err();
    assert_eq!(odd, "9 features are no whole heads for 3 heads on 2");
}

#[test]
fn the_table_of_the_rotation_has_cosines_and_then_sines() {
    let model = Llama2cModel {
        dim: 8,
        hidden: 4,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        vocab: 3,
        positions: 3,
        shared: true,
        version: 0,
    };
    let table = model.items().into_iter().find_map(|item| match item {
        Llama2cItem::Bytes(bytes) => Some(bytes),
        _ => None,
    });
    let numbers: Vec<f32> =
        table.unwrap().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    // Positions 0, 1, 2 of two pairs, whose frequencies are 1 and 1/100.
    let angles = [0.0f32, 0.0, 1.0, 0.01, 2.0, 0.02];
    let want: Vec<f32> = angles.iter().map(|x| x.cos()).chain(angles.iter().map(|x| x.sin())).collect();
    assert!(numbers.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-6), "{numbers:?}");
    assert_eq!(numbers.len(), want.len());
}
