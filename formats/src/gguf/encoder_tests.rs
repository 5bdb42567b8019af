//! Tests of the configurations of encoders and classifiers.

use serde_json::json;

use super::model_tests::{config, keys, refusal, with_tensors};
use super::test_writer::{TestFile, TestValue};

#[test]
fn encoders_are_described() {
    let file = |architecture: &str| {
        let epsilon = format!("{architecture}.attention.layer_norm_epsilon");
        with_tensors(keys(architecture)).key(&epsilon, TestValue::F32(0.5))
    };
    let types = config(file("bert").tensor("token_types.weight", &[8, 2], 0, &[0; 64]));
    assert_eq!((&types["type_vocab_size"], &types["layer_norm_eps"]), (&json!(2), &json!(0.5)));
    let causal = refusal(file("nomic-bert").key("nomic-bert.attention.causal", TestValue::Bool(true)));
    assert!(causal.contains("nomic-bert.attention.causal is true"), "{causal}");
    let modern = |file: TestFile| {
        file.key("modern-bert.attention.sliding_window_pattern", TestValue::U32(3))
            .key("modern-bert.rope.freq_base_swa", TestValue::F32(250.0))
            .key("modern-bert.hidden_act", TestValue::Text("silu"))
    };
    let window = "modern-bert.attention.sliding_window";
    let found = config(modern(file("modern-bert")).key(window, TestValue::U32(64)));
    for (key, want) in [
        ("local_attention", json!(64)),
        ("global_attn_every_n_layers", json!(3)),
        ("local_rope_theta", json!(250.0)),
        ("hidden_activation", json!("silu")),
        ("norm_bias", json!(false)),
    ] {
        assert_eq!(found[key], want, "{key}");
    }
    assert!(found.get("sliding_window").is_none());
    let missing = refusal(modern(file("modern-bert")));
    assert!(missing.contains(&format!("the key {window} is missing")), "{missing}");
    assert_eq!(config(file("gemma-embedding"))["use_bidirectional_attention"], true);
}

/// A BERT with this tensor of a classifier.
fn classifier(tensors: &[(&str, &[usize])]) -> TestFile {
    let file = keys("bert").key("bert.attention.layer_norm_epsilon", TestValue::F32(0.5));
    let file =
        file.key("bert.pooling_type", TestValue::U32(4)).tensor("token_embd.weight", &[8, 3], 0, &[0; 96]);
    tensors.iter().fold(file, |file, (name, shape)| {
        let bytes = vec![0; shape.iter().product::<usize>() * 4];
        file.tensor(name, shape, 0, &bytes)
    })
}

#[test]
fn classifiers_are_read_as_a_whole_or_refused() {
    const DENSE: (&str, &[usize]) = ("cls.weight", &[8, 8]);
    const OUT: (&str, &[usize]) = ("cls.output.weight", &[8, 2]);
    let whole = config(classifier(&[DENSE, OUT]));
    assert_eq!(whole["architectures"], json!(["BertForSequenceClassification"]));
    assert_eq!((&whole["num_labels"], whole.get("millrace")), (&json!(2), None));
    let labels = |names: &'static [&'static str]| {
        classifier(&[DENSE, OUT]).key("bert.classifier.output_labels", TestValue::Texts(names))
    };
    assert_eq!(config(labels(&["no", "yes"]))["id2label"], json!({"0": "no", "1": "yes"}));
    for (file, text) in [
        (classifier(&[OUT]), "a classifier without its first layer, cls;"),
        (classifier(&[DENSE]), "a classifier without a last layer, cls.output;"),
        (classifier(&[("dense_2.weight", &[8, 8])]), "dense_2.weight belongs to a layer behind the pooling"),
        (labels(&["no"]), "has 1 entries for 2 outputs"),
    ] {
        let refusal = refusal(file);
        assert!(refusal.contains(text), "{refusal}");
    }
    let none = config(classifier(&[]));
    assert_eq!(none["millrace"], json!({"pooling": {"key": "bert.pooling_type", "type": 4}}));
}
