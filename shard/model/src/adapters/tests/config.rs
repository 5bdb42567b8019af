//! Tests of `adapter_config.json`.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::Files;
use crate::adapters::AdapterError;
use crate::adapters::config::{AdapterConfig, RankAndScale};

fn parse(text: &str) -> Result<(AdapterConfig, Vec<String>), AdapterError> {
    AdapterConfig::parse("adapter_config.json".to_owned(), text.as_bytes())
}

/// Parses a configuration of rank 8 and scale 2 with other keys.
fn with(changes: &Value) -> Result<(AdapterConfig, Vec<String>), AdapterError> {
    let mut config = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16});
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    parse(&config.to_string())
}

/// Returns the message for a configuration that is refused.
#[track_caller]
fn refusal(changes: &Value) -> String {
    with(changes).unwrap_err().to_string()
}

#[test]
fn scales_are_those_of_peft() {
    let scale = |changes: &Value| with(changes).unwrap().0.of_module("model.layers.0.self_attn.q_proj");
    assert_eq!(scale(&json!({})), RankAndScale { rank: 8, scale: 2.0 });
    let by_root = scale(&json!({"r": 16, "use_rslora": true, "lora_alpha": 2.5}));
    assert_eq!(by_root, RankAndScale { rank: 16, scale: 0.625 });
    let patterns = json!({"rank_pattern": {"k_proj": 2, "q_proj": 4}, "alpha_pattern": {"q_proj": 1.0}});
    assert_eq!(scale(&patterns), RankAndScale { rank: 4, scale: 0.25 });
    // The scale follows from the module's own rank.
    assert_eq!(scale(&json!({"rank_pattern": {"q_proj": 4}})).scale, 4.0);
    assert_eq!(scale(&json!({"rank_pattern": null, "lora_alpha": -4})).scale, -0.5);
}

#[test]
fn patterns_match_as_in_peft() {
    let module = "model.layers.10.self_attn.q_proj";
    for (pattern, matches) in [
        ("q_proj", true),
        ("self_attn.q_proj", true),
        ("proj", false),
        ("_proj", false),
        ("q_proj.x", false),
        ("model.layers.10.self_attn.q_proj", true),
        ("^model.layers.10.self_attn.q_proj", true),
        ("^layers.10.self_attn.q_proj", false),
        ("layers.1.self_attn.q_proj", false),
        // A dot is any character in an expression.
        ("self.attn.q.proj", true),
        ("", false),
        (r"layers\.\d+\.self_attn\.(q|k)_proj", true),
        (r"layers\.1\..*", false),
        (r"^model\.layers\.(9|10)\..*", true),
        (r"^layers\..*", false),
        (".*", true),
        ("k_proj|q_proj", true),
    ] {
        let (config, _) = with(&json!({"rank_pattern": {pattern: 3}})).unwrap();
        assert_eq!(config.of_module(module).rank, if matches { 3 } else { 8 }, "{pattern}");
    }
}

#[test]
fn the_first_pattern_that_matches_is_used() {
    // Sorted by name, the other one would be first.
    let text = r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 8,
                   "rank_pattern": {"q_proj": 5, "attn.q_proj": 6, "z_proj": 7}}"#;
    assert_eq!(parse(text).unwrap().0.of_module("attn.q_proj").rank, 5);
    let text = text.replace("z_proj", "q_proj");
    assert!(parse(&text).unwrap_err().to_string().contains("q_proj is given twice"));
}

#[test]
fn what_is_not_plain_lora_is_refused_by_name() {
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("bias", json!("lora_only")),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("trainable_token_indices", json!([1])),
        ("trainable_token_indices", json!({"embed_tokens": [1]})),
        ("target_parameters", json!(["mlp.experts.gate_up_proj"])),
        ("alora_invocation_tokens", json!([5])),
        ("use_qalora", json!(true)),
        ("layer_replication", json!([[0, 2]])),
        ("megatron_config", json!({"a": 1})),
        ("use_bdlora", json!({"nblocks": 2})),
        ("arrow_config", json!({"top_k": 3})),
        ("kasa_config", json!({"beta": 1})),
        ("monteclora_config", json!({"a": 1})),
        ("init_lora_weights", json!("pissa")),
        ("init_lora_weights", json!("pissa_niter_16")),
        ("init_lora_weights", json!("olora")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("loftq")),
        ("init_lora_weights", json!("lora_ga")),
        ("init_lora_weights", json!(3)),
    ] {
        let message = refusal(&json!({key: value}));
        assert!(message.starts_with(&format!("adapter_config.json: {key} = ")), "{message}");
        assert!(message.contains("is not supported: it"), "{message}");
    }
}

#[test]
fn what_changes_nothing_is_accepted() {
    for init in [json!(null), json!(true), json!(false), json!("gaussian"), json!("eva"), json!("orthogonal")]
    {
        assert!(with(&json!({"init_lora_weights": init})).unwrap().1.is_empty());
    }
    let unused = json!({
        "use_dora": false, "modules_to_save": null, "target_parameters": [], "megatron_config": {},
        "some_new_flag": false, "some_new_list": [], "some_new_key": null, "bias": "none",
        "target_modules": "all-linear", "task_type": "CAUSAL_LM", "lora_dropout": 0.1, "loftq_config": {"a": 1},
    });
    assert_eq!(with(&unused).unwrap().1, Vec::<String>::new());
    let unknown = with(&json!({"some_new_method": true, "some_size": 3, "r": 8})).unwrap().1;
    assert_eq!(unknown, ["some_new_method", "some_size"]);
}

#[test]
fn numbers_have_limits() {
    for (changes, part) in [
        (json!({"r": 0}), "r is 0, but must be a rank from 1 to 1024"),
        (json!({"r": 1025}), "r is 1025"),
        (json!({"r": -1}), "r is -1"),
        (json!({"r": 1.5}), "r is 1.5"),
        (json!({"r": "8"}), "r is 8"),
        (json!({"r": 1e300}), "r is 1e+300"),
        (json!({"r": null}), "r is null"),
        (
            json!({"lora_alpha": 1e7}),
            "lora_alpha is 10000000.0, but must be a number from -1000000 to 1000000",
        ),
        (json!({"lora_alpha": "x".repeat(500)}), "lora_alpha is xxxxx"),
        (json!({"rank_pattern": {"q_proj": 0}}), "rank_pattern.q_proj is 0"),
        (json!({"alpha_pattern": {"q_proj": []}}), "alpha_pattern.q_proj is []"),
        (json!({"rank_pattern": {"(?=x)": 1}}), "rank_pattern has the pattern (?=x), which is not supported"),
        (json!({"rank_pattern": {"(": 1}}), "rank_pattern has the pattern (,"),
        (json!({"alpha_pattern": {"((a{99}){99}){99}": 1}}), "alpha_pattern has the pattern"),
        (json!({"use_rslora": "yes"}), "use_rslora is neither true nor false"),
        (json!({"peft_type": null}), "peft_type is missing"),
    ] {
        let message = refusal(&changes);
        assert!(message.contains(part) && message.len() < 400, "{changes}: {message}");
    }
    let many: serde_json::Map<String, Value> =
        (0..5000).map(|index| (format!("m{index}"), json!(1))).collect();
    assert!(refusal(&json!({"rank_pattern": many})).contains("more than the limit of 4096"));
    let many: serde_json::Map<String, Value> =
        (0..300).map(|index| (format!("m{index}+"), json!(1))).collect();
    assert!(refusal(&json!({"alpha_pattern": many})).contains("more than 256 regular expressions"));
}

#[test]
fn texts_that_are_no_configuration_are_refused() {
    for (text, part) in [
        ("", "is not valid JSON"),
        ("[]", "is not valid JSON"),
        (r#"{"peft_type": "LORA", "lora_alpha": 8}"#, "r is missing"),
        (r#"{"peft_type": "LORA", "r": 8}"#, "lora_alpha is missing"),
        (r#"{"peft_type": "LORA", "r": 8, "lora_alpha": NaN}"#, "lora_alpha is"),
        (r#"{"peft_type": "LORA", "r": 8, "lora_alpha": -Infinity}"#, "lora_alpha is"),
        (r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 8, "rank_pattern": 3}"#, "an object with a number"),
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn a_large_file_is_not_read() {
    let files = Files::new().write();
    let file = std::fs::File::create(files.path().join("adapter_config.json")).unwrap();
    file.set_len(1 << 30).unwrap();
    let message = super::open(&super::llama(), files.path()).unwrap_err().to_string();
    assert!(message.contains("adapter_config.json: it has 1073741824 bytes"), "{message}");
}

proptest! {
    /// A pattern without special characters matches a module exactly if the expression does.
    #[test]
    fn plain_patterns_match_as_expressions(pattern in r"\^?[ab.]{0,5}", module in r"[ab.]{0,8}") {
        let expression = regex::Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).unwrap();
        let (config, _) = with(&json!({"rank_pattern": {pattern: 3}})).unwrap();
        prop_assert_eq!(config.of_module(&module).rank == 3, expression.is_match(&module));
    }

    #[test]
    fn no_text_is_fatal(text in r#"\{("(r|lora_alpha|rank_pattern|peft_type)": ?("LORA"|[0-9e]{1,4}|\{"[a-z(*^]{0,4}": ?[0-9]\}|null),?){0,5}\}"#) {
        if let Ok((config, _)) = parse(&text) {
            let found = config.of_module("model.layers.0.q_proj");
            prop_assert!((1..=1024).contains(&found.rank) && found.scale.is_finite());
        }
    }
}
