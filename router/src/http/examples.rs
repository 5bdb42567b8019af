//! The example of a request for each route with a body, which the page `/docs/` offers to send.

use serde_json::{Value, json};

/// Returns a request that the route at `path` answers, if the model is of the right kind.
pub(super) fn example(path: &str) -> Option<Value> {
    let messages = json!([{"role": "user", "content": "Tell me a story about a fox and a lantern."}]);
    let prompt = "Once upon a time";
    Some(match path {
        "/" => json!({"inputs": prompt, "parameters": {"max_new_tokens": 40}, "stream": true}),
        "/generate" | "/generate_stream" | "/invocations" => {
            json!({"inputs": prompt, "parameters": {"max_new_tokens": 40}})
        }
        "/vertex" => json!({"instances": [{"inputs": prompt, "parameters": {"max_new_tokens": 40}}]}),
        "/tokenize" => json!({"inputs": prompt}),
        "/detokenize" => json!({"tokens": [72, 105]}),
        "/chat_tokenize" | "/v1/messages/count_tokens" => json!({"messages": messages}),
        "/v1/completions" => json!({"prompt": prompt, "max_tokens": 40, "stream": true}),
        "/v1/chat/completions" => json!({"messages": messages, "max_tokens": 60, "stream": true}),
        "/v1/messages" => json!({"messages": messages, "max_tokens": 60, "stream": true}),
        "/v1/responses" => json!({"input": messages[0]["content"], "max_output_tokens": 60, "stream": true}),
        "/embed" => json!({"inputs": ["A fox with a lantern", "A boat on a river"]}),
        "/v1/embeddings" => json!({"input": ["A fox with a lantern", "A boat on a river"]}),
        "/rerank" => {
            json!({"query": "Who has a lantern?", "texts": ["A fox with a lantern", "A boat on a river"]})
        }
        "/predict" => json!({"inputs": "A fox with a lantern", "raw_scores": false}),
        "/similarity" => {
            let inputs =
                json!({"source_sentence": "A fox with a lantern", "sentences": ["A boat on a river"]});
            json!({"inputs": inputs})
        }
        "/v1/rerank" | "/v2/rerank" => {
            json!({"query": "Who has a lantern?", "documents": ["A fox with a lantern", "A boat on a river"]})
        }
        "/v1/load_lora_adapter" => json!({"lora_name": "sql", "lora_path": "/adapters/sql"}),
        "/v1/unload_lora_adapter" => json!({"lora_name": "sql"}),
        "/v1/restart_groups" => json!({}),
        "/v2/models/{model}/infer" => {
            let input = json!({"name": "input", "shape": [1], "datatype": "BYTES", "data": [prompt]});
            json!({"inputs": [input]})
        }
        _ => return None,
    })
}
