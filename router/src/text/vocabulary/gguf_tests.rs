//! Tests against the ids that llama.cpp published for its vocabularies.

use millrace_formats::vocabulary::GgufTokenizer;

use crate::assets::{Assets, Vocabulary};
use crate::test_support::test_data;
use crate::text::{SpecialTokens, Tokenizer};

/// Reads the metadata of a GGUF file, as far as a tokenizer needs them.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    /// Reads a value: its numbers, and its texts.
    fn value(&mut self, kind: u32) -> (Vec<f64>, Vec<String>) {
        match kind {
            0 | 7 => (vec![f64::from(self.bytes::<1>()[0])], Vec::new()),
            4 => (vec![f64::from(self.u32())], Vec::new()),
            5 => (vec![f64::from(i32::from_le_bytes(self.bytes()))], Vec::new()),
            6 => (vec![f64::from(f32::from_le_bytes(self.bytes()))], Vec::new()),
            8 => (Vec::new(), vec![self.text()]),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                let (mut numbers, mut texts) = (Vec::new(), Vec::new());
                for _ in 0..count {
                    let (more, other) = self.value(kind);
                    numbers.extend(more);
                    texts.extend(other);
                }
                (numbers, texts)
            }
            other => panic!("type {other} does not occur"),
        }
    }
}

fn read(file: &[u8]) -> GgufTokenizer {
    let mut reader = Reader(file);
    assert_eq!(&reader.bytes::<4>(), b"GGUF");
    let (_version, _tensors, count) = (reader.u32(), reader.u64(), reader.u64());
    let mut found = GgufTokenizer::default();
    for _ in 0..count {
        let (key, kind) = (reader.text(), reader.u32());
        let (numbers, texts) = reader.value(kind);
        let first = || numbers.first().map(|&number| number as u32);
        match key.strip_prefix("tokenizer.ggml.").unwrap_or_default() {
            "model" => found.model = texts[0].clone(),
            "pre" => found.pre = Some(texts[0].clone()),
            "tokens" => found.tokens = texts,
            "merges" => found.merges = texts,
            "scores" => found.scores = numbers.iter().map(|&score| score as f32).collect(),
            "token_type" => found.token_types = numbers.iter().map(|&kind| kind as i32).collect(),
            "bos_token_id" => found.bos_token_id = first(),
            "eos_token_id" => found.eos_token_id = first(),
            "add_bos_token" => found.add_bos_token = first().map(|flag| flag != 0),
            _ => {}
        }
    }
    found
}

#[test]
#[ignore = "needs the published vocabularies of MILLRACE_TEST_DATA"]
fn published_vocabularies_give_the_published_ids() {
    for name in ["ggml-vocab-llama-spm.gguf", "ggml-vocab-gpt-2.gguf"] {
        let path = |end: &str| test_data("tokenizers").join(format!("{name}{end}"));
        let file = read(&std::fs::read(path("")).unwrap());
        let assets = Assets { tokenizer: Vocabulary::from_gguf(file).unwrap().into(), ..Assets::default() };
        let tokenizer = Tokenizer::new(&assets, 1).unwrap();
        let (texts, ids) =
            (std::fs::read_to_string(path(".inp")).unwrap(), std::fs::read_to_string(path(".out")).unwrap());
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let ids: Vec<&str> = ids.split('\n').collect();
        assert_eq!(ids.len(), 47);
        for (text, ids) in texts.iter().zip(&ids) {
            let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let encoded = tokenizer.encode_now(text, SpecialTokens::Omit).unwrap();
            assert_eq!(encoded.ids, expected, "{name}: {text:?}");
        }
    }
}
