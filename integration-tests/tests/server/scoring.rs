//! Tests the scores of given texts with the real binary. They equal the logprobs of generating the
//! same text.

use millrace_integration_tests::{Server, post};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

/// With these flags a prompt takes several steps, and its scores arrive in several parts.
const SMALL_SERVER_FLAGS: [&str; 6] =
    ["--dtype", "float32", "--max-batch-prefill-tokens", "24", "--max-batch-size", "4"];

/// Returns the only choice of a response.
fn choice(server: &Server, body: &Value) -> Value {
    let answer = post(&server.url(PATH), body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["choices"][0].clone()
}

/// Generates tokens after a prompt, and returns them with a request that scores the whole text.
fn written(server: &Server, prompt: &str, tokens: usize) -> (Value, Value) {
    let body = json!({
        "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 2, "return_token_ids": true,
        "logit_bias": {"0": -100, "1": -100, "2": -100},
    });
    let written = choice(server, &body);
    let ids = |name: &str| written[name].as_array().unwrap().clone();
    let all = [ids("prompt_token_ids"), ids("token_ids")].concat();
    (written, json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 2, "prompt_logprobs": 1}))
}

fn list<'a>(choice: &'a Value, name: &str) -> &'a [Value] {
    choice["logprobs"][name].as_array().unwrap()
}

#[test]
fn a_text_has_the_scores_of_its_generation() {
    for shards in ["1", "2"] {
        let server = Server::start(&[&SMALL_SERVER_FLAGS[..], &["--num-shard", shards]].concat());
        let (written, request) = written(&server, "Once upon a time there was a fox", 80);
        for _ in 0..2 {
            // The second request finds its prefix in the cache and still returns all scores.
            let scored = choice(&server, &request);
            let (all, new) = (list(&scored, "tokens").len(), list(&written, "tokens").len());
            assert_eq!((new, scored["finish_reason"].as_str()), (80, Some("length")));
            assert!(scored["text"].as_str().unwrap().ends_with(written["text"].as_str().unwrap()));
            for name in ["tokens", "token_logprobs", "top_logprobs"] {
                assert_eq!(list(&scored, name)[all - new..], *list(&written, name), "{name} on {shards}");
            }
            let places = list(&scored, "text_offset").windows(2);
            assert!(places.into_iter().all(|pair| pair[0].as_u64() <= pair[1].as_u64()));
            assert_eq!(list(&scored, "token_logprobs")[0], Value::Null);

            let ranked = scored["prompt_logprobs"].as_array().unwrap();
            assert_eq!((ranked.len(), &ranked[0]), (all, &Value::Null));
            for (index, of) in ranked.iter().enumerate().skip(1) {
                let own = &of[request["prompt"][index].to_string()];
                assert_eq!(own["logprob"], list(&scored, "token_logprobs")[index]);
                assert_eq!(own["decoded_token"], list(&scored, "tokens")[index]);
                // The generated tokens were the most likely ones.
                assert!(index < all - new || own["rank"] == 1, "{of}");
            }
        }

        let parameters = json!({"decoder_input_details": true, "max_new_tokens": 1});
        let body = json!({"inputs": "Once upon a time", "parameters": parameters});
        let details = post(&server.url("/generate"), &body).body["details"].clone();
        let echo = json!({"prompt": "Once upon a time", "echo": true, "logprobs": 0, "max_tokens": 1});
        let echoed = choice(&server, &echo);
        let prefill = details["prefill"].as_array().unwrap();
        assert_eq!(prefill.len() + 1, list(&echoed, "tokens").len());
        for (token, logprob) in prefill.iter().zip(list(&echoed, "token_logprobs")) {
            assert_eq!(&token["logprob"], logprob);
        }
    }
}

/// Some sequences are preempted because blocks are scarce, and all lose their shard. No score is
/// lost or repeated.
#[test]
fn scores_survive_the_loss_of_a_shard() {
    let flags = ["--max-batch-total-tokens", "1600", "--max-total-tokens", "1000"];
    let server = Server::start(&[&SMALL_SERVER_FLAGS[..], &flags].concat());
    let (_, mut request) = written(&server, "Once upon a time", 600);
    let expected = choice(&server, &request);
    request["max_tokens"] = json!(200);
    request["temperature"] = json!(0);
    let before = choice(&server, &request);
    let scored = |choice: &Value| choice["prompt_logprobs"].clone();
    assert_eq!(scored(&before), scored(&expected));
    let prefills = |server: &Server| server.metric("tgi_batch_inference_success{method=\"prefill\"}");
    let begun = prefills(&server);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6).map(|_| scope.spawn(|| choice(&server, &request))).collect();
        // Each prompt takes more than twenty steps.
        server.wait_until("it computes", |server| prefills(server) >= begun + 10.0);
        server.signal_shards("KILL");
        for client in clients {
            assert_eq!(client.join().unwrap(), before);
        }
    });
    server.wait_for_restarts(1);
}

#[test]
fn a_watermark_is_reproducible_with_its_seed() {
    let text = |flags: &[&str], watermark: bool| {
        let parameters = json!({"watermark": watermark, "max_new_tokens": 60, "seed": 3, "temperature": 0.9});
        let body = json!({"inputs": "Once upon a time", "parameters": parameters});
        let answer = post(&Server::start(&[&["--dtype", "float32"], flags].concat()).url("/generate"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["generated_text"].clone()
    };
    let (marked, plain) = (text(&[], true), text(&[], false));
    assert_ne!(marked, plain);
    assert_eq!(text(&["--num-shard", "2"], true), marked);
    // A watermark of weight 0 has no effect, and one for another part of the vocabulary differs.
    assert_eq!(text(&["--watermark-delta", "0"], true), plain);
    assert_ne!(text(&["--watermark-gamma", "0.25"], true), marked);
}
