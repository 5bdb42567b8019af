//! Tests `/metrics` and the dashboard.

use std::collections::BTreeSet;

use millrace_integration_tests::{Server, post, stream};
use serde_json::{Value, json};

/// Returns the metric names in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    words.filter(|word| ["tgi_", "vllm:", "millrace_"].iter().any(|prefix| word.starts_with(prefix)))
}

fn strings<'a>(value: &'a Value, key: &str, to: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == key => to.push(text),
                    value => strings(value, key, to),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| strings(item, key, to)),
        _ => {}
    }
}

/// TGI's metrics. `tgi_batch_concat`, `tgi_batch_concat_duration`, `tgi_batch_filter_duration` and
/// `tgi_batch_decode_duration` are not among them, because batches are not concatenated or filtered
/// here: each step may add and remove sequences.
const TGI: &[&str] = &[
    "tgi_request_count",
    "tgi_request_success",
    "tgi_request_failure{err=\"validation\"}",
    "tgi_request_failure{err=\"overloaded\"}",
    "tgi_request_failure{err=\"generation\"}",
    "tgi_request_failure{err=\"incomplete\"}",
    "tgi_request_failure{err=\"dropped\"}",
    "tgi_request_failure{err=\"template\"}",
    "tgi_batch_inference_count{method=\"prefill\"}",
    "tgi_batch_inference_count{method=\"decode\"}",
    "tgi_batch_inference_success{method=\"decode\"}",
    "tgi_batch_inference_failure{method=\"decode\"}",
    "tgi_batch_current_size",
    "tgi_batch_current_max_tokens",
    "tgi_batch_max_total_tokens",
    "tgi_queue_size",
    "tgi_request_duration_bucket",
    "tgi_request_validation_duration_bucket",
    "tgi_request_queue_duration_bucket",
    "tgi_request_inference_duration_bucket",
    "tgi_request_mean_time_per_token_duration_bucket",
    "tgi_request_generated_tokens_bucket",
    "tgi_request_max_new_tokens_bucket",
    "tgi_request_input_length_bucket",
    "tgi_batch_next_size_bucket",
    "tgi_batch_inference_duration_bucket{method=\"prefill\"",
    "tgi_batch_inference_duration_bucket{method=\"decode\"",
    "tgi_batch_forward_duration_bucket{method=\"decode\"",
    "tgi_request_skipped_tokens",
];

#[test]
fn the_dashboard_shows_existing_metrics() {
    let dashboard = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/grafana.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(dashboard).unwrap()).unwrap();
    let mut expressions = Vec::new();
    strings(&dashboard, "expr", &mut expressions);
    strings(&dashboard, "query", &mut expressions);
    let asked: BTreeSet<&str> = expressions.iter().flat_map(|expression| names(expression)).collect();
    assert!(asked.len() > 20, "{asked:?}");

    let server = Server::start(&[]);
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8}});
    assert_eq!(post(&server.url("/generate"), &body).status, 200);
    let text = server.get("/metrics").1;
    let measured: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let missing: Vec<_> = asked.difference(&measured).collect();
    assert!(missing.is_empty(), "{missing:?}\n{text}");
    assert!(text.contains("\nmillrace_quarantined_sequences 0"), "{text}");
    let missing: Vec<_> = TGI.iter().filter(|name| !text.contains(&format!("\n{name}"))).collect();
    assert!(missing.is_empty(), "{missing:?}\n{text}");
}

#[test]
fn each_request_is_counted_once() {
    let server = Server::start(&[]);
    let chat = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2});
    let bad = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 0});
    let plain = json!({"prompt": "Once", "max_tokens": 2});
    let inputs = json!({"inputs": "Once", "parameters": {"max_new_tokens": 2}});
    for (path, body, status) in [
        ("/generate", &inputs, 200),
        ("/v1/completions", &plain, 200),
        ("/v1/chat/completions", &chat, 200),
        ("/v1/messages", &chat, 200),
        ("/v1/chat/completions", &bad, 400),
    ] {
        assert_eq!(post(&server.url(path), body).status, status, "{path}");
    }
    assert!(stream(&server.url("/generate_stream"), &inputs).last().is_some());
    assert_eq!(server.metric("tgi_request_count"), 6.0);
    assert_eq!(server.metric("tgi_request_success"), 5.0);
    assert_eq!(server.metric("tgi_request_failure{err=\"validation\"}"), 1.0);
    assert_eq!(server.metric("tgi_request_duration_count"), 5.0);
    assert_eq!(server.metric("tgi_request_time_to_first_token_duration_count"), 5.0);

    // TGI's buckets: 35 for a duration, each 1.5 times the previous one, and 100 for a length.
    let text = server.get("/metrics").1;
    let bounds = |name: &str| -> Vec<f64> {
        let begin = format!("{name}_bucket{{le=\"");
        let bound = |line: &str| line.strip_prefix(&begin)?.split('"').next()?.parse().ok();
        text.lines().filter_map(bound).filter(|bound: &f64| bound.is_finite()).collect()
    };
    let durations = bounds("tgi_request_duration");
    assert_eq!(durations.len(), 35);
    assert!(durations.windows(2).all(|pair| (pair[1] / pair[0] - 1.5).abs() < 1e-6), "{durations:?}");
    assert!((durations[0] - 0.00015).abs() < 1e-9);
    for name in ["tgi_request_input_length", "tgi_request_generated_tokens", "tgi_request_max_new_tokens"] {
        let lengths = bounds(name);
        assert_eq!(lengths.len(), 100, "{name}");
        assert!(lengths.windows(2).all(|pair| (pair[1] - pair[0] - lengths[0]).abs() < 1e-6), "{name}");
    }
    assert_eq!(bounds("tgi_batch_next_size").last(), Some(&1024.0));
}

#[test]
fn endpoint_pickers_see_the_load() {
    let server = Server::start(&["--max-batch-size", "1", "--heartbeat-timeout", "86400"]);
    let text = server.get("/metrics").1;
    let config = text
        .lines()
        .find(|line| line.starts_with("vllm:cache_config_info{"))
        .expect("is there from the start");
    assert!(config.contains("block_size=\"16\"") && config.ends_with(" 1"), "{config}");
    let blocks: f64 = server.metric("millrace_kv_blocks_total");
    assert!(config.contains(&format!("num_gpu_blocks=\"{blocks}\"")), "{config}");
    assert_eq!(server.metric("tgi_batch_max_total_tokens"), blocks * 16.0);
    for name in ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"] {
        assert_eq!(server.metric(name), 0.0);
        assert!(text.contains(&format!("\n{name} 0")), "{name} is there before the first request");
    }

    let body = json!({"prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "stream": true,
                      "logit_bias": {"0": -100, "1": -100, "2": -100}});
    let mut running = stream(&server.url("/v1/completions"), &body);
    assert!(running.next().is_some());
    // The stopped shard keeps one running and the other waiting.
    server.signal_shards("STOP");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut waiting = stream(&server.url("/v1/completions"), &body);
            waiting.next()
        });
        server.wait_until("one runs and one waits", |server| {
            server.metric("vllm:num_requests_running") == 1.0
                && server.metric("vllm:num_requests_waiting") == 1.0
                && server.metric("vllm:kv_cache_usage_perc") > 0.0
        });
        drop(running);
        server.signal_shards("CONT");
        assert!(waits.join().unwrap().is_some());
    });
    // Both clients have left. The gauges show this without another request.
    server.wait_until("nothing runs", |server| {
        ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
            .iter()
            .all(|name| server.metric(name) == 0.0)
    });
}
