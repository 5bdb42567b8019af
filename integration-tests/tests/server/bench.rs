//! Tests `millrace bench`: its figures, its table, and its refusals.

use std::process::{Command, Output};

use millrace_integration_tests::{AdapterFolder, binary};
use serde_json::Value;

fn bench(flags: &[&str]) -> Output {
    Command::new(binary()).arg("bench").args(flags).env_remove("MODEL_ID").output().unwrap()
}

fn printed(flags: &[&str]) -> String {
    let output = bench(flags);
    assert!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn lines(flags: &[&str]) -> Vec<Value> {
    printed(flags).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const SMALL: [&str; 8] = ["--prompt", "20", "--generate", "3", "--repeat", "2", "--threads", "2"];

#[test]
fn an_adapter_is_measured_and_named() {
    let folder = AdapterFolder::new("bench", 1);
    let module = folder.named("a");
    let found = lines(&[&SMALL[..], &["--batch", "2", "--json", "--lora-modules", &module]].concat());
    assert_eq!(found[0]["model"], "demo with adapter a");
    let config = folder.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"bias\":\"none\"", "\"bias\":\"all\"")).unwrap();
    for (flags, text) in [
        (&["--lora-modules", &module][..], "bias"),
        (&["--lora-modules", &module, "--device", "cuda"], "LoRA adapters are computed on the CPU only"),
    ] {
        let refused = bench(&[&SMALL[..], flags].concat());
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && errors.contains(text), "{flags:?}: {errors}");
    }
}

#[test]
fn each_batch_size_is_a_line_of_json_with_plausible_figures() {
    let found = lines(&[&SMALL[..], &["--batch", "3,1", "--json"]].concat());
    assert_eq!(found.iter().map(|line| line["batch"].as_u64().unwrap()).collect::<Vec<_>>(), [3, 1]);
    for line in &found {
        assert_eq!((&line["dtype"], &line["quantize"]), (&"bfloat16".into(), &Value::Null), "{line}");
        for (key, number) in [("prompt", 20), ("generate", 3), ("threads", 2), ("repeat", 2)] {
            assert_eq!(line[key], number, "{line}");
        }
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key}: {line}"));
        for key in [
            "prefill_tokens_per_second",
            "decode_tokens_per_second",
            "decode_gigabytes_per_second",
            "prefill_gflops",
            "bandwidth_gigabytes_per_second",
            "peak_gflops",
            "one_prompt_prefill_tokens_per_second",
        ] {
            assert!((1e-3..1e9).contains(&number(key)), "{key}: {line}");
        }
        let per_second = number("batch") * 1e3 / number("decode_ms_per_step");
        assert!((per_second / number("decode_tokens_per_second") - 1.0).abs() < 1e-6, "{line}");
        // On a busy machine the measured peak may be below what the prefill reached.
        assert!(number("prefill_share_of_peak") >= 0.0, "{line}");
    }
    // One sequence reads all weights of the demo model in each step: 1.1 million in 2 bytes.
    let per_step = |line: &Value| {
        line["decode_gigabytes_per_second"].as_f64().unwrap() * line["decode_ms_per_step"].as_f64().unwrap()
    };
    assert!((2.0..4.0).contains(&per_step(&found[1])), "{}", found[1]);
}

#[test]
fn the_table_names_the_model_and_the_machine() {
    let table = printed(&[&SMALL[..], &["--batch", "2,5"]].concat());
    for part in [
        "demo: llama, 1.12 M parameters as bfloat16",
        "2 threads), KV cache as bfloat16",
        "prompts of 20 tokens, 3 decode steps; medians of 2 runs",
        "this machine, in the same runs: ",
        "of bandwidth",
        "prefill of one prompt alone: ",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let heading = rows.iter().position(|row| row.first() == Some(&"batch")).unwrap();
    assert_eq!((rows[heading + 1][0], rows[heading + 2][0]), ("2", "5"));
    assert!(rows[heading + 1].len() == 8 && rows[heading + 1][7].ends_with('%'), "{table}");
}

#[test]
fn the_expected_time_and_its_basis_are_said_before_the_runs() {
    for (prompt, first) in [("20", "20"), ("300", "128")] {
        let output =
            bench(&["--prompt", prompt, "--generate", "2", "--repeat", "1", "--batch", "2", "--json"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let [line] = said.lines().collect::<Vec<_>>()[..] else { panic!("not one line: {said}") };
        assert!(line.starts_with(&format!("a prompt of {prompt} tokens takes about ")), "{said}");
        assert!(line.contains(&format!(", because one of {first} took ")), "{said}");
        assert!(line.contains("; all runs take about "), "{said}");
        // No bar is drawn where nobody sees one, and the figures are alone on standard output.
        assert!(!said.contains('\u{1b}'), "{said:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.starts_with('{') && printed.lines().count() == 1, "{printed}");
    }
}

#[test]
fn a_terminal_sees_a_bar() {
    // `script` runs the command on a terminal of its own. It is part of every Debian system.
    let command =
        format!("{} bench --prompt 900 --generate 2 --repeat 2 --batch 16 --threads 1", binary().display());
    let output = Command::new("script").args(["-qec", &command, "/dev/null"]).env_remove("MODEL_ID").output();
    let Ok(output) = output else {
        eprintln!("skipped: the program `script` is not installed");
        return;
    };
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{seen}");
    for part in ["a prompt of 900 tokens takes about ", "run 1 of 2, batch 16", " left)", "of bandwidth"] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
}

#[test]
fn weights_can_be_made_up_from_the_configuration() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/llama_gqa");
    let flags =
        ["--model-id", config, "--load-format", "dummy", "--dtype", "float32", "--batch", "2", "--json"];
    let [line] = &lines(&[&flags[..], &["--prompt", "6", "--generate", "2"]].concat())[..] else {
        panic!("not one line")
    };
    assert_eq!((&line["dtype"], &line["kv_cache_dtype"]), (&"float32".into(), &"float32".into()));
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    for (flags, text) in [
        (&["--prompt", "1020"][..], "make sequences of 1052 tokens, but the model supports 1024"),
        (&["--batch", "0"], "--batch"),
        (&["--batch", "1,x"], "--batch"),
        (&["--model-id", "/nowhere/model"], "/nowhere/model"),
        (&["--device", "null"], "the device `null` computes nothing"),
        (&["--device", "auto"], "name the device that is measured"),
        (&["--batch", "65536", "--kv-cache-dtype", "float32"], "lower --batch, --prompt or --generate"),
        (&["--concurrency", "1"], "--concurrency"),
    ] {
        let output = bench(flags);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(text), "{flags:?}: {said}");
        assert!(!said.contains("panicked"), "{flags:?}: {said}");
    }
}

/// The engine that is measured is generic over devices.
#[test]
fn a_simulated_gpu_is_measured_without_limits() {
    millrace_integration_tests::require_simulated_gpus();
    let flags = ["--device", "cuda-sim", "--prompt", "3", "--generate", "2", "--batch", "2", "--repeat", "1"];
    let [line] = &lines(&[&flags[..], &["--json"]].concat())[..] else { panic!("not one line") };
    assert!(line["decode_tokens_per_second"].as_f64().unwrap() > 0.0, "{line}");
    assert_eq!((&line["threads"], &line["peak_gflops"]), (&Value::Null, &Value::Null));
}
