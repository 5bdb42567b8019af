//! Tests of reading the files of sentence-transformers.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

/// Reads files that are in memory.
fn read_files(files: &[(&str, Value)], tokenizer_config: &Value) -> EmbeddingFiles {
    let files: HashMap<&str, Vec<u8>> =
        files.iter().map(|(name, json)| (*name, json.to_string().into_bytes())).collect();
    read(None, &|name| Ok(files.get(name).map(|bytes| bytes.clone().into())), &Value::Null, tokenizer_config)
}

fn usable(files: &[(&str, Value)]) -> Arc<EmbeddingModel> {
    match read_files(files, &Value::Null) {
        EmbeddingFiles::Usable(model) => model,
        EmbeddingFiles::Unusable(error) => panic!("{error}"),
    }
}

fn refusal(files: &[(&str, Value)]) -> String {
    match read_files(files, &Value::Null) {
        EmbeddingFiles::Usable(model) => panic!("{model:?}"),
        EmbeddingFiles::Unusable(error) => error.to_string(),
    }
}

/// A list of modules of these types.
fn modules(types: &[&str]) -> Value {
    let module = |(index, kind): (usize, &&str)| {
        let name = kind.rsplit('.').next().unwrap();
        let path = if index == 0 { String::new() } else { format!("{index}_{name}") };
        json!({"idx": index, "name": index.to_string(), "path": path, "type": kind})
    };
    types.iter().enumerate().map(module).collect()
}

const OLD: [&str; 3] = [
    "sentence_transformers.models.Transformer",
    "sentence_transformers.models.Pooling",
    "sentence_transformers.models.Normalize",
];
const NEW: [&str; 3] = [
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "sentence_transformers.base.modules.normalize.Normalize",
];

#[test]
fn lists_of_modules_in_both_spellings_are_read() {
    for types in [OLD, NEW] {
        let pooling = json!({"embedding_dimension": 4, "pooling_mode": ["cls", "mean"]});
        let model = usable(&[("modules.json", modules(&types)), ("1_Pooling/config.json", pooling)]);
        let chosen = model.pooling(None, || PoolingMode::Last).unwrap();
        assert_eq!(chosen.modes, [PoolingMode::First, PoolingMode::Mean]);
        assert_eq!((chosen.source.as_str(), chosen.is_guess), ("1_Pooling/config.json", false));
        assert!(model.normalizes() && !model.has_matrix());
        assert_eq!(model.output_features(4, 2), Ok(8));
        let error = model.output_features(5, 2).unwrap_err().to_string();
        assert!(error.contains("1_Pooling/config.json: states have 4 features there"), "{error}");
        assert_eq!(model.apply(vec![3.0, 4.0]), [0.6, 0.8]);
        let asked = model.pooling(Some(PoolingMode::Max), || PoolingMode::Last).unwrap();
        assert_eq!((asked.modes, asked.source.as_str()), (vec![PoolingMode::Max], "--pooling"));
    }
}

#[test]
fn a_folder_without_the_files_leaves_the_choice_to_a_rule() {
    let chosen = usable(&[]).pooling(None, || PoolingMode::Last).unwrap();
    assert_eq!((chosen.modes, chosen.is_guess), (vec![PoolingMode::Last], true));
}

#[test]
fn modules_that_are_not_supported_are_refused_by_name() {
    let pooling = ("1_Pooling/config.json", json!({}));
    for (types, word) in [
        (vec![OLD[0], OLD[1], "custom_st.Attention"], "custom_st.Attention"),
        (vec!["custom_st.Transformer", OLD[1]], "custom_st.Transformer"),
        (vec![OLD[0], OLD[1], "sentence_transformers.models.CNN"], "models.CNN"),
        (vec![OLD[0], OLD[1], OLD[1]], "models.Pooling at place 2"),
        (vec![OLD[0], OLD[2]], "models.Normalize at place 1"),
        (vec![OLD[0]], "no Pooling module"),
        (vec![OLD[1]], "models.Pooling at place 0"),
        (vec![], "no Pooling module"),
    ] {
        let error = refusal(&[("modules.json", modules(&types)), pooling.clone()]);
        assert!(error.starts_with("modules.json: ") && error.contains(word), "{types:?}: {error}");
    }
}

#[test]
fn files_that_the_list_needs_must_exist_and_stay_in_the_folder() {
    let error = refusal(&[("modules.json", modules(&OLD))]);
    assert!(error.contains("1_Pooling/config.json: it is missing"), "{error}");
    for path in ["../1_Pooling", "/etc", "a\\b"] {
        let list = json!([{"path": "", "type": OLD[0]}, {"path": path, "type": OLD[1]}]);
        let error = refusal(&[("modules.json", list)]);
        assert!(error.contains("does not stay in the folder"), "{path}: {error}");
    }
    let list = json!([{"path": "0_Transformer", "type": OLD[0]}]);
    assert!(refusal(&[("modules.json", list)]).contains("0_Transformer"));
    assert!(refusal(&[("modules.json", json!({}))]).contains("modules.json: it is not valid"));
}

#[test]
fn texts_get_a_prompt_and_lower_case() {
    let prompts = json!({"prompts": {"query": "Query: ", "document": null}, "default_prompt_name": "query"});
    let model = usable(&[
        ("config_sentence_transformers.json", prompts),
        ("sentence_bert_config.json", json!({"max_seq_length": 7, "do_lower_case": true})),
    ]);
    assert_eq!(model.prompt(None), Ok(Some("Query: ")));
    assert_eq!(model.prompt(Some("document")), Ok(Some("")));
    let error = model.prompt(Some("passage")).unwrap_err();
    assert!(error.contains("no prompt \"passage\", but document, query"), "{error}");
    assert_eq!(model.text(Some("Query: "), "Ä b"), "query: ä b");
    let bound = model.max_tokens().unwrap();
    assert_eq!((bound.tokens, &*bound.source), (7, "max_seq_length of sentence_bert_config.json"));
    assert!(usable(&[]).prompt(Some("query")).is_err());
    assert_eq!(usable(&[]).prompt(None), Ok(None));
}

#[test]
fn configurations_of_another_kind_are_refused() {
    for (file, config, word) in [
        ("config_sentence_transformers.json", json!({"model_type": "CrossEncoder"}), "CrossEncoder"),
        ("config_sentence_transformers.json", json!({"default_prompt_name": "x"}), "default_prompt_name"),
        ("config_sentence_transformers.json", json!({"prompts": {"x": 1}}), "not valid"),
        ("sentence_bert_config.json", json!({"max_seq_length": 0}), "max_seq_length"),
        ("sentence_bert_config.json", json!({"transformer_task": "fill-mask"}), "fill-mask"),
        ("sentence_bert_config.json", json!({"modality_config": {"image": {}}}), "no texts"),
        (
            "sentence_bert_config.json",
            json!({"modality_config": {"text": {"method_output_name": "pooler_output"}}}),
            "pooler_output",
        ),
    ] {
        let error = refusal(&[(file, config)]);
        assert!(error.starts_with(file) && error.contains(word), "{error}");
    }
}

#[test]
fn the_tokenizer_limits_texts_if_the_transformer_does_not() {
    let files = [("modules.json", modules(&OLD)), ("1_Pooling/config.json", json!({"pooling_mode": "mean"}))];
    for (limit, expected) in [(json!(512), Some(512)), (json!(1e30), None), (Value::Null, None)] {
        let config = json!({"model_max_length": limit});
        let EmbeddingFiles::Usable(model) = read_files(&files, &config) else { panic!("not usable") };
        assert_eq!(model.max_tokens().map(|bound| bound.tokens), expected);
        // A folder of another layout is not limited.
        let EmbeddingFiles::Usable(model) = read_files(&[], &config) else { panic!("not usable") };
        assert_eq!(model.max_tokens(), None);
    }
}
