//! Tests folders of sentence-transformers with the real binary: vectors are those that
//! sentence-transformers computes, limits and poolings are shown with their sources, and what is
//! not supported is refused by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_integration_tests::hub::{COMMIT, FakeHub, snapshot};
use millrace_integration_tests::{ModelCopy, Server, binary, post};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The bound on the difference of two features, relative to the largest feature of the vector.
const TOLERANCE: f64 = 1e-5;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-embedders")
}

fn start(model: &Path, flags: &[&str]) -> Server {
    let model = ["--model-id", model.to_str().unwrap(), "--dtype", "float32"];
    Server::start(&[&model[..], flags].concat())
}

/// Copies a golden folder, so that a test can change it.
fn copy_of(name: &str) -> TempDir {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let target = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy(&entry.path(), &target),
                false => drop(fs::copy(entry.path(), target).unwrap()),
            }
        }
    }
    let to = TempDir::new().unwrap();
    copy(&folder().join(name), to.path());
    to
}

fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut json);
    fs::write(file, json.to_string()).unwrap();
}

/// Starts a server that must not start, and returns its log.
fn refusal(model: &Path) -> String {
    let mut command = Command::new(binary());
    command.args(["serve", "--device", "cpu", "--port", "0", "--model-id", model.to_str().unwrap()]);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn embed(server: &Server, body: &Value) -> Vec<Vec<f64>> {
    let answer = post(&server.url("/embed"), body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    serde_json::from_value(answer.body).unwrap()
}

fn rows(value: &Value) -> Vec<Vec<f64>> {
    serde_json::from_value(value.clone()).unwrap()
}

fn assert_close(found: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}");
        let largest = expected.iter().fold(1.0f64, |largest, value| largest.max(value.abs()));
        for (a, b) in found.iter().zip(expected) {
            assert!(
                (a - b).abs() < TOLERANCE * largest,
                "{what}, text {index}: {found:?} is not {expected:?}"
            );
        }
    }
}

fn check(name: &str) {
    let model = folder().join(name);
    let golden: Value = serde_json::from_slice(&fs::read(model.join("golden.json")).unwrap()).unwrap();
    let texts: Vec<String> = serde_json::from_value(golden["texts"].clone()).unwrap();
    let expected = rows(&golden["vectors"]);
    let server = start(&model, &[]);
    let plain = |inputs: &Value| json!({"inputs": inputs, "normalize": false, "truncate": true});
    let together = embed(&server, &plain(&json!(texts)));
    assert_close(&together, &expected, name);
    for (text, vector) in texts.iter().zip(&together) {
        let alone = embed(&server, &plain(&json!(text)));
        assert_eq!(alone, std::slice::from_ref(vector), "{name}: {text} alone");
    }
    let many: Vec<&String> = texts.iter().cycle().take(40).collect();
    let all = embed(&server, &plain(&json!(many)));
    assert!(all.iter().zip(together.iter().cycle()).all(|(a, b)| a == b), "{name}: {all:?}");
    let short = json!({"inputs": texts, "dimensions": 5, "truncate": true});
    assert_close(&embed(&server, &short), &rows(&golden["dimensions"]), &format!("{name}, 5 dimensions"));
    for (prompt, expected) in golden["prompts"].as_object().into_iter().flatten() {
        let mut body = plain(&json!(texts));
        body["prompt_name"] = json!(prompt);
        assert_close(&embed(&server, &body), &rows(expected), &format!("{name} with the prompt {prompt}"));
    }
    // OpenAI's route makes vectors of length 1, and refuses long texts.
    let answer = post(&server.url("/v1/embeddings"), &json!({"input": texts[0]}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let vector: Vec<f64> = serde_json::from_value(answer.body["data"][0]["embedding"].clone()).unwrap();
    let length = expected[0].iter().map(|value| value * value).sum::<f64>().sqrt();
    let unit = expected[0].iter().map(|value| value / length).collect();
    assert_close(&[vector], &[unit], &format!("{name} by OpenAI's route"));
    assert_eq!(server.metric("millrace_kv_blocks_used"), 0.0);
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 8, "{names:?}");
    names.iter().for_each(|name| check(name));
}

#[test]
fn vectors_do_not_depend_on_chunks_and_shards() {
    let model = folder().join("last");
    let golden: Value = serde_json::from_slice(&fs::read(model.join("golden.json")).unwrap()).unwrap();
    for mode in ["max", "weightedmean", "mean_sqrt_len_tokens", "last"] {
        let vectors = |flags: &[&str]| {
            let server = start(&model, &[&["--pooling", mode], flags].concat());
            embed(&server, &json!({"inputs": golden["texts"], "normalize": false}))
        };
        let whole = vectors(&[]);
        assert_eq!(vectors(&["--max-batch-prefill-tokens", "4", "--max-batch-size", "2"]), whole, "{mode}");
        if mode == "last" {
            assert_close(&whole, &rows(&golden["vectors"]), mode);
        }
    }
}

#[test]
fn a_prompt_is_left_out_in_every_chunk() {
    let copy = copy_of("last");
    let modes = ["max", "weightedmean", "mean_sqrt_len_tokens", "cls", "lasttoken"];
    edit(&copy.path().join("1_Pooling/config.json"), |json| {
        (json["include_prompt"], json["pooling_mode"]) = (json!(false), json!(modes));
    });
    let vectors = |flags: &[&str]| {
        let server = start(copy.path(), flags);
        let body =
            json!({"inputs": ["w5 w6 w7 w8 w9 w10", "w11"], "normalize": false, "prompt_name": "query"});
        embed(&server, &body)
    };
    let whole = vectors(&[]);
    for chunk in ["1", "2", "4"] {
        assert_eq!(
            vectors(&["--max-batch-prefill-tokens", chunk, "--max-batch-size", "1"]),
            whole,
            "{chunk}"
        );
    }
    // The vectors of one token behind the prompt and of the end token after it.
    let features = whole[1].len() / modes.len();
    assert!(whole[1].chunks(features).all(|mode| mode.iter().any(|value| value.abs() > 1e-3)), "{whole:?}");
}

#[test]
fn limits_and_poolings_are_shown_with_their_sources() {
    let server = start(&folder().join("dense"), &[]);
    let (status, info) = server.get("/info");
    assert_eq!(status, 200);
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(
        info["embeddings"],
        json!({
            "pooling": ["mean"], "pooling_source": "1_Pooling/config.json",
            "modules": ["Dense 16 to 24 (Tanh)", "Normalize"], "features": 24, "max_input_tokens": 7,
            "max_input_tokens_source": "max_seq_length of sentence_bert_config.json",
            "prompts": ["document", "query"], "default_prompt": null,
        })
    );
    server.wait_for_log(
        "vectors: pooling mean (1_Pooling/config.json), Dense 16 to 24 (Tanh), Normalize; 24 features",
    );
    server.wait_for_log("at most 7 tokens (max_seq_length of sentence_bert_config.json)");
    // Five words and the two tokens around them fit.
    let words = |count: usize| json!((5..5 + count).map(|n| format!("w{n}")).collect::<Vec<_>>().join(" "));
    assert_eq!(embed(&server, &json!({"inputs": words(5)})).len(), 1);
    let refused = post(&server.url("/embed"), &json!({"inputs": ["w5", words(6)]}));
    assert_eq!(refused.status, 422, "{}", refused.body);
    let text = refused.body["error"].as_str().unwrap();
    assert!(text.contains("the input at index 1: ") && text.contains("Given: 8"), "{text}");
    let refused = post(&server.url("/v1/embeddings"), &json!({"input": ["w5", words(6)]}));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("input")));
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("index 1"), "{}", refused.body);

    // Both directions keep the tokens around the text.
    let cut = |direction: &str| {
        let body = json!({"inputs": words(9), "truncate": true, "truncation_direction": direction});
        embed(&server, &body)
    };
    assert_eq!(cut("Right"), embed(&server, &json!({"inputs": words(5)})));
    assert_eq!(cut("Left"), embed(&server, &json!({"inputs": "w9 w10 w11 w12 w13"})));
    let unnamed = embed(&server, &json!({"inputs": words(9), "truncate": true}));
    assert_eq!(unnamed, cut("Right"));
    let refused = post(&server.url("/embed"), &json!({"inputs": "w5", "prompt_name": "passage"}));
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body["error"].as_str().unwrap().contains("document, query"), "{}", refused.body);
}

#[test]
fn a_guess_is_a_warning() {
    let server = start(&folder().join("no_modules"), &[]);
    server.wait_for_log("Neither modules.json nor 1_Pooling/config.json says how states are pooled");
    let info: Value = serde_json::from_str(&server.get("/info").1).unwrap();
    let embeddings = &info["embeddings"];
    assert_eq!(
        (&embeddings["pooling"], &embeddings["pooling_source"]),
        (&json!(["mean"]), &json!("default"))
    );
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    type Change = fn(&Path);
    let cases: [(&str, Change, &[&str]); 6] = [
        (
            "dense",
            |at| edit(&at.join("modules.json"), |json| json[2]["type"] = json!("custom.Attention")),
            &["modules.json: the module custom.Attention is not supported"],
        ),
        (
            "dense",
            |at| {
                edit(&at.join("2_Dense/config.json"), |json| {
                    json["activation_function"] = json!("torch.nn.GLU")
                })
            },
            &["2_Dense/config.json: the activation \"torch.nn.GLU\" is not supported"],
        ),
        (
            "dense",
            |at| edit(&at.join("2_Dense/config.json"), |json| json["out_features"] = json!(16_000_000)),
            &["2_Dense/model.safetensors", "linear.weight"],
        ),
        (
            "dense",
            |at| edit(&at.join("1_Pooling/config.json"), |json| json["word_embedding_dimension"] = json!(8)),
            &["1_Pooling/config.json: states have 8 features there, but the model's have 16"],
        ),
        (
            "modes_in_order",
            |at| edit(&at.join("1_Pooling/config.json"), |json| json["pooling_mode"] = json!("attention")),
            &["1_Pooling/config.json: the pooling `attention` is not supported"],
        ),
        (
            "dense",
            |at| fs::remove_dir_all(at.join("2_Dense")).unwrap(),
            &["2_Dense/config.json: it is missing"],
        ),
    ];
    for (name, change, texts) in cases {
        let copy = copy_of(name);
        change(copy.path());
        let log = refusal(copy.path());
        assert!(texts.iter().all(|text| log.contains(text)), "{texts:?} is not in: {log}");
    }
}

#[test]
fn the_end_token_is_for_vectors_and_not_for_generation() {
    let count = |server: &Server, path: &str, body: Value| {
        let answer = post(&server.url(path), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let counts = |flag: Option<bool>| {
        let model = ModelCopy::new(&format!("end-token-{flag:?}"));
        model.edit("tokenizer_config.json", |config| config["add_eos_token"] = json!(flag));
        let server = Server::start(&["--model-id", model.path()]);
        let vector = count(&server, "/v1/embeddings", json!({"input": "Rosa bought"}));
        let prompt = json!({"prompt": "Rosa bought", "max_tokens": 1});
        (vector, count(&server, "/v1/completions", prompt))
    };
    let (vector, prompt) = counts(None);
    assert_eq!(counts(Some(false)), (vector, prompt));
    assert_eq!(counts(Some(true)), (vector + 1, prompt));
}

/// A tokenizer whose post-processor puts the end token after every text.
#[test]
fn an_end_token_of_the_post_processor_is_not_continued() {
    let model = ModelCopy::new("post-processor");
    let end = "<|im_end|>";
    model.edit("tokenizer.json", |tokenizer| {
        let tokens = tokenizer["added_tokens"].as_array().unwrap();
        let id = tokens.iter().find(|token| token["content"] == json!(end)).unwrap()["id"].clone();
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {end: {"id": end, "ids": [id], "tokens": [end]}},
        });
    });
    let server = Server::start(&["--model-id", model.path()]);
    let vector = post(&server.url("/v1/embeddings"), &json!({"input": "Rosa bought"}));
    let prompt = post(&server.url("/v1/completions"), &json!({"prompt": "Rosa bought", "max_tokens": 1}));
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(tokens(&vector.body), tokens(&prompt.body) + 1, "{} {}", vector.body, prompt.body);
}

/// The files of a golden folder, as a hub has them.
fn files_of(name: &str) -> Vec<(String, Vec<u8>)> {
    fn collect(from: &Path, prefix: &str, files: &mut Vec<(String, Vec<u8>)>) {
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => collect(&entry.path(), &format!("{name}/"), files),
                false => files.push((name, fs::read(entry.path()).unwrap())),
            }
        }
    }
    let mut files = Vec::new();
    collect(&folder().join(name), "", &mut files);
    files
}

#[test]
fn modules_are_downloaded_and_a_broken_link_is_named_with_its_target() {
    let hub = FakeHub::start(files_of("residual"));
    let cache = TempDir::new().unwrap();
    let output = hub.download(cache.path(), &[], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in
        ["modules.json", "sentence_bert_config.json", "2_Dense/config.json", "3_Dense/pytorch_model.bin"]
    {
        assert_eq!(hub.downloads_of(name).len(), 1, "{name}");
    }
    assert!(hub.downloads_of("golden.json").is_empty());
    let offline = [("HF_HUB_OFFLINE", "1")];
    assert!(hub.download(cache.path(), &offline, &[]).status.success());
    // The blob of a link is deleted: of a module, and of the weights.
    for name in ["2_Dense/pytorch_model.bin", "model.safetensors"] {
        let link = snapshot(cache.path()).join(name);
        let target = fs::read_link(&link).unwrap();
        let (blob, hidden) = (link.parent().unwrap().join(&target), cache.path().join("hidden"));
        fs::rename(&blob, &hidden).unwrap();
        let output = hub.download(cache.path(), &offline, &[]);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{name}");
        let text = format!("{name} (it is a link to {}, which does not exist) is missing", target.display());
        assert!(log.contains(&text), "{log}");
        assert!(log.contains(&format!("refs/main names the commit {COMMIT}")), "{log}");
        // The folder itself is as clear.
        let log = refusal(&snapshot(cache.path()));
        assert!(log.contains(&format!("it is a link to {}", target.display())), "{name}: {log}");
        fs::rename(&hidden, &blob).unwrap();
    }
}
