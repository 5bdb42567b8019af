//! Tests the files beside a model's weights: end tokens, sampling defaults, and the cache of packed
//! weights.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_integration_tests::{JsonResponse, ModelCopy, Server, TILDE, binary, post, shards_of};
use serde_json::{Value, json};

use crate::command_line::millrace;

fn chat(server: &Server, more: &Value) -> JsonResponse {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}], "max_tokens": 200,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = post(&server.url("/v1/chat/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

fn info(server: &Server) -> Value {
    serde_json::from_str(&server.get("/info").1).unwrap()
}

fn inspect(arguments: &[&str]) -> String {
    String::from_utf8(millrace(&[&["inspect"], arguments].concat(), &[]).stdout).unwrap()
}

/// A fine-tuned model whose configuration still names the end token of its base model.
#[test]
fn an_answer_ends_with_the_end_token_of_the_template() {
    let model = ModelCopy::new("end-tokens");
    model.edit("generation_config.json", |config| config["eos_token_id"] = json!(0));
    model.edit("config.json", |config| config["eos_token_id"] = json!(0));
    model.edit("tokenizer_config.json", |config| config["eos_token"] = json!("<|endoftext|>"));
    let (changed, plain) = (Server::start(&["--model-id", model.path()]), Server::start(&[]));
    assert_eq!(info(&changed)["end_tokens"], json!(["<|endoftext|>", "<|im_end|>"]));
    let greedy = json!({"temperature": 0});
    let (changed, plain) = (chat(&changed, &greedy).body, chat(&plain, &greedy).body);
    assert_eq!(changed["choices"][0]["finish_reason"], "stop");
    assert_eq!(changed["choices"], plain["choices"]);
    assert_eq!(changed["usage"]["completion_tokens"], plain["usage"]["completion_tokens"]);
}

/// Transformers 5 uses a stored head that differs from the embedding, whatever `config.json` says.
#[test]
fn a_stored_head_is_used_although_the_configuration_ties_it() {
    let model = ModelCopy::new("tied-with-head");
    // With the embedding as its head, the model would say nothing but this token.
    model.overwrite_embedding(TILDE, 100.0);
    let answer = |server: &Server| {
        chat(server, &json!({"temperature": 0, "logprobs": true, "top_logprobs": 5})).body["choices"].take()
    };
    let untied = Server::start(&["--model-id", model.path()]);
    assert!(!untied.log().contains("ties the head"), "{}", untied.log());
    model.edit("config.json", |config| config["tie_word_embeddings"] = json!(true));
    let tied = Server::start(&["--model-id", model.path()]);
    assert_eq!(answer(&tied), answer(&untied));
    let warning = "config.json ties the head to the embedding, but lm_head.weight differs from \
                   model.embed_tokens.weight: lm_head.weight is used";
    assert!(tied.log().contains(warning), "{}", tied.log());
}

#[test]
fn a_missing_head_is_never_replaced_in_silence() {
    let model = ModelCopy::new("missing-head");
    model.edit("config.json", |config| config["tie_word_embeddings"] = json!(false));
    let serve = ["serve", "--port", "0", "--model-id", model.path()];
    let refused = Command::new(binary()).args(serve).output().unwrap();
    let log = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{log}");
    assert!(log.contains("tie_word_embeddings is false, but the checkpoint has no lm_head.weight"), "{log}");

    model.edit("config.json", |config| {
        config.as_object_mut().unwrap().remove("tie_word_embeddings");
    });
    let server = Server::start(&["--model-id", model.path()]);
    let warning = "the checkpoint has no lm_head.weight, and config.json does not say tie_word_embeddings";
    assert!(server.log().contains(warning), "{}", server.log());
}

#[test]
fn a_family_or_an_element_type_that_files_contradict_is_named_once() {
    let model = ModelCopy::new("contradictory-config");
    model.edit("config.json", |config| {
        (config["model_type"], config["torch_dtype"]) = (json!("mistral"), json!("float32"));
    });
    let family = "config.json: `model_type` is mistral, but `architectures` names LlamaForCausalLM: the model is \
                  computed as MistralForCausalLM, as `model_type` says";
    let dtype = "config.json: the element type is float32, but the tensors are bfloat16: bfloat16 is used";
    let server = Server::start(&["--model-id", model.path(), "--num-shard", "2"]);
    let log = server.log();
    for warning in [family, dtype] {
        assert_eq!(log.matches(warning).count(), 1, "{warning}: {log}");
    }
    assert_eq!(info(&server)["model_dtype"], "bfloat16");
    chat(&server, &json!({"max_tokens": 4}));
    let inspected = inspect(&[model.path()]);
    assert!(inspected.contains(&format!("Warnings\n  {family}\n  {dtype} unless")), "{inspected}");
    // The operator's word is no contradiction.
    let inspected = inspect(&[model.path(), "--dtype", "float32"]);
    assert!(inspected.contains(&format!("Warnings\n  {family}\n\nFiles")), "{inspected}");
    let server = Server::start(&["--model-id", model.path(), "--dtype", "float32"]);
    assert!(!server.log().contains("the element type is"), "{}", server.log());
    assert!(server.log().contains(family), "{}", server.log());
}

#[test]
fn a_template_whose_calls_are_not_known_is_named() {
    let warning = "the chat template writes tool calls in a format that is not known";
    let model = ModelCopy::new("unknown-calls");
    for (mark, is_known) in
        [("<tool_call>", true), ("<<tool_call>>", false), ("<atem:function_calls>", false)]
    {
        model.edit("tokenizer_config.json", |config| {
            let calls = format!("{{% for call in m.tool_calls %}}{mark}{{{{ call }}}}{{% endfor %}}");
            config["chat_template"] =
                format!("{{% for m in messages %}}{{{{ m.content }}}}{calls}{{% endfor %}}").into();
        });
        let server = Server::start(&["--model-id", model.path()]);
        assert_eq!(server.log().contains(warning), !is_known, "{mark}: {}", server.log());
    }
    let server = Server::start(&["--model-id", model.path(), "--tool-call-parser", "hermes"]);
    assert!(!server.log().contains(warning), "{}", server.log());
}

#[test]
fn a_silent_request_is_sampled_as_generation_config_says() {
    let model = ModelCopy::new("sampling-defaults");
    model.edit("generation_config.json", |config| {
        (config["do_sample"], config["top_k"], config["temperature"]) = (json!(true), json!(1), json!(2.0));
    });
    let texts = |server: &Server| -> Vec<Value> {
        let seeds = 1..6;
        seeds.map(|seed| chat(server, &json!({"seed": seed})).body["choices"][0]["message"].clone()).collect()
    };
    let server = Server::start(&["--model-id", model.path()]);
    assert_eq!(info(&server)["sampling_defaults"], json!({"temperature": 2.0, "top_k": 1}));
    let greedy = chat(&server, &json!({"temperature": 0})).body["choices"][0]["message"].clone();
    // The sampling parameters leave a single token.
    assert!(texts(&server).iter().all(|text| *text == greedy));

    let server = Server::start(&["--model-id", model.path(), "--generation-config", "none"]);
    assert_eq!(info(&server)["sampling_defaults"], json!({}));
    assert!(texts(&server).iter().any(|text| *text != greedy));
}

/// llguidance has no place for a token of more than 1,024 bytes.
#[test]
fn a_grammar_never_needs_a_token_that_is_too_long() {
    let model = ModelCopy::new("long-token");
    model.edit("tokenizer.json", |tokenizer| {
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        // A token that no merge makes, so that texts are divided as before.
        let unused = vocabulary.iter().find(|(_, id)| **id == json!(TILDE)).unwrap().0.clone();
        vocabulary.remove(&unused);
        vocabulary.insert("x".repeat(1500), json!(TILDE));
    });
    let server = Server::start(&["--model-id", model.path()]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {
        "type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"],
        "additionalProperties": false}}});
    let body = chat(&server, &json!({"response_format": format, "temperature": 0})).body;
    let text = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap()["name"].is_string(), "{text}");
}

/// The demo model's pattern in one expression. A digit ends a run of white space, as a word does
/// not.
const PATTERN: &str = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+";

/// Returns the bytes of a token in GPT-2's alphabet, in which the bytes that are not printable are
/// the characters from U+0100 on.
fn token_bytes(token: &str) -> Vec<u8> {
    let is_printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let others: Vec<u8> = (0..=255).filter(|byte| !is_printable(byte)).collect();
    let byte = |c: char| match u32::from(c) {
        code @ 0..256 => code as u8,
        code => others[code as usize - 256],
    };
    token.chars().map(byte).collect()
}

/// Converts the demo model's `tokenizer.json` to the format of Mistral's models.
#[test]
fn a_model_with_a_tekken_file_answers_as_with_a_tokenizer_json() {
    let model = ModelCopy::new("tekken");
    let folder = Path::new(model.path());
    let json: Value = serde_json::from_slice(&fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
    fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let mut tokens: Vec<(&String, u64)> = json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| (text, id.as_u64().unwrap()))
        .collect();
    tokens.sort_by_key(|(_, id)| *id);
    let (special, text) = tokens.split_at(3);
    let base64 = |bytes: Vec<u8>| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    let vocab = text
        .iter()
        .enumerate()
        .map(|(rank, (token, _))| json!({"rank": rank, "token_bytes": base64(token_bytes(token))}));
    let special = special.iter().map(|(text, id)| json!({"rank": id, "token_str": text, "is_control": true}));
    let tekken = json!({
        "config": {"pattern": PATTERN, "default_vocab_size": tokens.len(), "default_num_special_tokens": 3},
        "vocab": vocab.collect::<Vec<_>>(),
        "special_tokens": special.collect::<Vec<_>>(),
    });
    fs::write(folder.join("tekken.json"), tekken.to_string()).unwrap();

    let (changed, plain) = (Server::start(&["--model-id", model.path()]), Server::start(&[]));
    let texts = ["", "Héllo, it's 12  345!\n\n  <|im_end|> 中文😀", "  a  b\t\tc 1  "];
    for text in texts {
        let ids = |server: &Server| post(&server.url("/tokenize"), &json!({"inputs": text})).body;
        assert_eq!(ids(&changed), ids(&plain), "{text:?}");
    }
    let greedy = json!({"temperature": 0});
    assert_eq!(chat(&changed, &greedy).body["choices"], chat(&plain, &greedy).body["choices"]);
}

/// The files of a folder, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn packed_weights_are_read_from_the_cache_when_the_server_starts_again() {
    let model = ModelCopy::new("weight-cache");
    let cache = Path::new(model.path()).join("cache");
    let of_cache = ["--packed-weights-cache", cache.to_str().unwrap()];
    let request =
        json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 30, "details": true}});
    // Returns the answer of a server, the files that its shards have mapped, and its log.
    let served = |flags: &[&str]| {
        let server = Server::start(&[&["--model-id", model.path()], flags].concat());
        let answer = post(&server.url("/generate"), &request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let maps: String = shards_of(server.pid())
            .into_iter()
            .map(|shard| fs::read_to_string(format!("/proc/{shard}/maps")).unwrap_or_default())
            .collect();
        (answer.body["details"]["tokens"].clone(), maps, server.log())
    };
    for quantize in [&["--dtype", "bfloat16"][..], &["--quantize", "q4_0"], &["--quantize", "int8"]] {
        for shards in [&["--num-shard", "1"][..], &["--num-shard", "2"]] {
            let flags = [quantize, shards].concat();
            let with_cache = [&flags[..], &of_cache].concat();
            let (expected, ..) = served(&flags);
            let (first, ..) = served(&with_cache);
            let kept = files(&cache);
            let times = || {
                kept.iter().map(|file| fs::metadata(file).unwrap().modified().unwrap()).collect::<Vec<_>>()
            };
            let written = times();
            assert_eq!(kept.len(), if shards[1] == "1" { 1 } else { 2 }, "{kept:?}");
            let (second, maps, log) = served(&with_cache);
            assert_eq!(times(), written, "the cache was written again");
            assert!(!maps.contains(".weights") && !log.contains("cache of packed weights"), "{log}");
            let (mapped, maps, _) = served(&[&with_cache[..], &["--map-packed-weights"]].concat());
            assert_eq!(times(), written, "the cache was written again");
            assert!(cfg!(not(target_os = "linux")) || maps.contains(".weights"), "{maps}");
            for found in [first, second, mapped] {
                assert_eq!(found, expected, "{flags:?}");
            }
            // The first array begins behind the label, at the first multiple of 64 KiB.
            let mut bytes = fs::read(&kept[0]).unwrap();
            bytes[70_000..71_000].iter_mut().for_each(|byte| *byte = !*byte);
            fs::write(&kept[0], bytes).unwrap();
            let (found, _, log) = served(&with_cache);
            assert_eq!(found, expected, "{flags:?}");
            assert!(log.contains("the checksum of its contents is wrong; it is removed"), "{log}");
            fs::remove_dir_all(&cache).unwrap();
        }
    }
}

/// Files with the name, the size and the time of those in the cache may hold other weights.
#[test]
fn a_cache_of_other_weights_is_not_used() {
    let model = ModelCopy::new("other-weights");
    let cache = Path::new(model.path()).join("cache");
    let weights = Path::new(model.path()).join("model.safetensors");
    let scores = |flags: &[&str]| {
        let server = Server::start(&[&["--model-id", model.path()], flags].concat());
        let request = json!({"inputs": "Once upon a time", "parameters": {
            "max_new_tokens": 4, "details": true, "decoder_input_details": true,
        }});
        post(&server.url("/generate"), &request).body["details"].clone()
    };
    let of_cache = ["--packed-weights-cache", cache.to_str().unwrap()];
    let before = scores(&of_cache);
    let time = fs::metadata(&weights).unwrap().modified().unwrap();
    let mut bytes = fs::read(&weights).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // The lowest bits of each number: other weights that are still good ones.
    bytes[start..].iter_mut().step_by(2).for_each(|byte| *byte ^= 0x3f);
    fs::write(&weights, bytes).unwrap();
    fs::File::options().write(true).open(&weights).unwrap().set_modified(time).unwrap();
    let (cached, plain) = (scores(&of_cache), scores(&[]));
    assert_ne!(before, plain, "the change of the weights has no effect");
    assert_eq!(cached, plain);
}
