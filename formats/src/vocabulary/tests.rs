//! Tests with tiny vocabularies, and with damaged ones.

use proptest::prelude::*;
use prost::Message;

use super::sentencepiece::{ModelMessage, NormalizerMessage, PieceMessage, TrainerMessage};
use super::*;

fn piece(text: &str, score: f32, kind: i32) -> PieceMessage {
    PieceMessage { piece: Some(text.into()), score: Some(score), kind: Some(kind) }
}

fn model() -> ModelMessage {
    ModelMessage {
        pieces: vec![
            piece("<unk>", 0.0, 2),
            piece("<s>", 0.0, 3),
            piece("</s>", 0.0, 3),
            piece("a", -1.0, 1),
        ],
        trainer: Some(TrainerMessage { model_type: Some(2), ..TrainerMessage::default() }),
        normalizer: Some(NormalizerMessage::default()),
    }
}

fn refusal(change: impl FnOnce(&mut ModelMessage)) -> String {
    let mut model = model();
    change(&mut model);
    read_sentencepiece(&model.encode_to_vec()).unwrap_err().to_string()
}

#[test]
fn sentencepiece_models_are_read_with_their_defaults() {
    let read = read_sentencepiece(&model().encode_to_vec()).unwrap();
    assert_eq!(read.algorithm, PieceAlgorithm::Bpe);
    assert_eq!((read.bos, read.eos, read.byte_fallback), (Some(1), Some(2), false));
    let PieceNormalization { chars_map, add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces } =
        read.normalization;
    assert!(chars_map.is_none() && add_dummy_prefix && remove_extra_whitespaces && escape_whitespaces);
    assert_eq!(read.pieces[3], Piece { text: "a".into(), score: -1.0, kind: PieceKind::Normal });
}

#[test]
fn damaged_sentencepiece_models_are_refused_by_name() {
    let trainer =
        |model: &mut ModelMessage, change: fn(&mut TrainerMessage)| change(model.trainer.as_mut().unwrap());
    for (refusal, text) in [
        (refusal(|model| model.pieces.clear()), "has no tokens"),
        (refusal(|model| model.pieces[3].piece = None), "token 3 is empty"),
        (refusal(|model| model.pieces[3].piece = Some("b".repeat(1025))), "has 1025 bytes"),
        (refusal(|model| model.pieces[3].piece = Some("<s>".into())), "\"<s>\" has two ids, 1 and 3"),
        (refusal(|model| model.pieces[3].score = Some(f32::NAN)), "score of token 3 is NaN"),
        (refusal(|model| model.pieces[3].kind = Some(9)), "unknown type 9"),
        (refusal(|model| model.pieces[0].kind = Some(1)), "no token for unknown text"),
        (refusal(|model| model.pieces[3] = piece("x", 0.0, 6)), "its text is \"x\""),
        (refusal(|model| trainer(model, |t| t.byte_fallback = Some(true))), "no token for the byte 0x00"),
        (refusal(|model| trainer(model, |t| t.model_type = Some(3))), "WORD"),
        (refusal(|model| trainer(model, |t| t.treat_whitespace_as_suffix = Some(true))), "end of words"),
        (
            refusal(|model| model.normalizer.as_mut().unwrap().chars_map = Some(vec![8, 0, 0, 0, 1])),
            "length of its table",
        ),
    ] {
        assert!(refusal.contains(text), "{refusal}, expected {text}");
    }
    let pointer = read_sentencepiece(b"version https://git-lfs.github.com/spec/v1").unwrap_err();
    assert_eq!(pointer, VocabularyError::LfsPointer);
}

fn ranks() -> Vec<String> {
    use base64::Engine;
    let line = |rank: u32, token: &[u8]| {
        format!("{} {rank}", base64::engine::general_purpose::STANDARD.encode(token))
    };
    (0..256).map(|byte| line(byte, &[byte as u8])).chain([line(256, b"ab")]).collect()
}

#[test]
fn tiktoken_files_are_read_in_any_order() {
    let mut lines = ranks();
    lines.reverse();
    let text = lines.join("\r\n") + "\n\n";
    assert!(is_tiktoken(text.as_bytes()) && !is_tiktoken(&model().encode_to_vec()));
    let read = read_tiktoken(text.as_bytes()).unwrap();
    assert_eq!((read.tokens.len(), read.tokens[256].as_slice()), (257, b"ab".as_slice()));
}

#[test]
fn damaged_tiktoken_files_are_refused_by_line_or_rank() {
    let refusal = |change: fn(&mut Vec<String>)| {
        let mut lines = ranks();
        change(&mut lines);
        read_tiktoken(lines.join("\n").as_bytes()).unwrap_err().to_string()
    };
    for (refusal, text) in [
        (refusal(Vec::clear), "has no tokens"),
        (refusal(|lines| lines[4] = "BA==".into()), "line 5: there is no space"),
        (refusal(|lines| lines[4] = "B 4".into()), "line 5: the token is not base64"),
        (refusal(|lines| lines[4] = "BA== 4x".into()), "line 5: the rank is not a number"),
        (refusal(|lines| lines[4] = "BA== 3".into()), "rank 3 occurs twice"),
        (refusal(|lines| lines[256] = "YWI= 4294967295".into()), "rank 256 is missing"),
        (refusal(|lines| lines[256] = "Yg== 256".into()), "has two ids, 98 and 256"),
        (refusal(|lines| lines.truncate(200)), "no token for the byte 0xC8"),
    ] {
        assert!(refusal.contains(text), "{refusal}, expected {text}");
    }
}

#[test]
fn llama2c_files_are_checked() {
    let mut file = 8u32.to_le_bytes().to_vec();
    let mut add = |text: &str| {
        file.extend(0f32.to_le_bytes());
        file.extend((text.len() as u32).to_le_bytes());
        file.extend(text.as_bytes());
    };
    ["<unk>", "\n<s>\n", "\n</s>\n"].iter().for_each(|text| add(text));
    (0..=255u8).for_each(|byte| add(&format!("<0x{byte:02X}>")));
    add(" a b");
    let read = read_llama2c(&file).unwrap();
    let kinds = [0, 1, 2, 3, 259].map(|id: usize| (read.pieces[id].text.as_str(), read.pieces[id].kind));
    assert_eq!(
        kinds,
        [
            ("<unk>", PieceKind::Unknown),
            ("<s>", PieceKind::Control),
            ("</s>", PieceKind::Control),
            ("<0x00>", PieceKind::Byte),
            ("▁a▁b", PieceKind::Normal)
        ]
    );
    assert!(read_llama2c(&file[..file.len() - 1]).unwrap_err().to_string().contains("ends within piece 259"));
    file[8] = 9;
    assert!(read_llama2c(&file).unwrap_err().to_string().contains("piece 0 has 9 bytes"));
    assert!(read_llama2c(&[255; 64]).unwrap_err().to_string().contains("first number"));
}

#[test]
fn tekken_files_are_checked() {
    let file = |size: usize, specials: usize, extra: &str| {
        use base64::Engine;
        let tokens = (0..256).map(|rank| {
            let bytes = base64::engine::general_purpose::STANDARD.encode([rank as u8]);
            format!(r#"{{"rank": {rank}, "token_bytes": "{bytes}"}}"#)
        });
        let tokens: Vec<_> = tokens.collect();
        let config = format!(
            r#"{{"pattern": ".", "default_vocab_size": {size}, "default_num_special_tokens": {specials}}}"#
        );
        read_tekken(format!(r#"{{"config": {config}, "vocab": [{}]{extra}}}"#, tokens.join(",")).as_bytes())
    };
    let read = file(272, 16, "").unwrap();
    assert_eq!((read.bytes.first_id, read.special.len()), (16, 16));
    assert_eq!((read.special[1].text.as_str(), read.special[15].text.as_str()), ("<s>", "<SPECIAL_15>"));
    let listed = file(258, 2, r#", "special_tokens": [{"rank": 1, "token_str": "<x>"}]"#).unwrap();
    assert_eq!((listed.special[0].text.as_str(), listed.special[1].text.as_str()), ("<SPECIAL_0>", "<x>"));
    let refusal = |size, specials, extra| file(size, specials, extra).unwrap_err().to_string();
    assert!(refusal(300, 2, "").contains("default_vocab_size is 300"));
    assert!(refusal(200, 2, "").contains("no token for the byte 0xC6"));
    assert!(refusal(usize::MAX, usize::MAX, "").contains("more than the"));
    assert!(refusal(256 + 16_385, 16_385, "").contains("more than the 16384 that are supported"));
    assert!(refusal(258, 2, r#", "special_tokens": [{"rank": 2, "token_str": "x"}]"#).contains("rank 2"));
}

fn gguf() -> TokenizerData {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    TokenizerData {
        model: "gpt2".into(),
        tokens: texts(&["a", "b", "ab"]),
        merges: texts(&["a b"]),
        ..TokenizerData::default()
    }
}

#[test]
fn gguf_vocabularies_are_checked() {
    let GgufVocabulary::Merged(read) = gguf().into_vocabulary().unwrap() else { panic!("not merged") };
    assert_eq!((read.merges[0].clone(), read.pre.as_str()), (("a".to_owned(), "b".to_owned()), "default"));
    let refusal = |change: fn(&mut TokenizerData)| {
        let mut file = gguf();
        change(&mut file);
        file.into_vocabulary().unwrap_err().to_string()
    };
    for (refusal, text) in [
        (refusal(|file| file.model = "bert".into()), "\"bert\""),
        (refusal(|file| file.scores = vec![1.0]), "scores has 1 entries for 3"),
        (refusal(|file| file.merges = vec!["a c".into()]), "the merge \"a c\""),
        (refusal(|file| file.merges = vec!["ab".into()]), "the merge \"ab\""),
        (refusal(|file| file.special.eos = Some(3)), "end token has the id 3"),
        (refusal(|file| file.tokens[1] = "a".into()), "two ids, 0 and 1"),
        (refusal(|file| file.model = "llama".into()), "no token for unknown text"),
    ] {
        assert!(refusal.contains(text), "{refusal}, expected {text}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), start in 0usize..4) {
        let mut file = [vec![], model().encode_to_vec(), ranks().join("\n").into_bytes(), 8u32.to_le_bytes().to_vec()][start].clone();
        file.extend(&bytes);
        let _ = (read_sentencepiece(&file), read_tiktoken(&file), read_llama2c(&file), read_tekken(&file));
    }

    #[test]
    fn damaged_tables_of_characters_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), text in "\\PC{0,20}") {
        let mut table = ((bytes.len() / 8 * 4) as u32).to_le_bytes().to_vec();
        table.extend(&bytes);
        if let Ok(Some(chars_map)) = CharsMap::read(&table)
            && let Some((length, _)) = chars_map.longest(&text)
        {
            prop_assert!(text.is_char_boundary(length));
        }
    }
}
