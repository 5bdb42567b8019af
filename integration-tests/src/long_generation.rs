//! A long generation, during which tests cause events.

use serde_json::{Value, json};

use crate::{Server, stream};

/// Generates a long greedy text with the demo model and calls `during` after the first event. A
/// logit bias excludes the tokens that would end the text early.
pub fn long_generation(server: &Server, during: impl FnOnce()) -> String {
    let request = json!({
        "model": "tgi", "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "stream": true,
        "logit_bias": {"0": -100, "1": -100, "2": -100},
    });
    let text = |event: Value| match event["choices"][0]["text"].as_str() {
        Some(text) => text.to_owned(),
        None => panic!("{event}\n{}", server.log()),
    };
    let mut events = stream(&server.url("/v1/completions"), &request);
    let mut generated = text(events.next().unwrap());
    during();
    events.for_each(|event| generated += &text(event));
    assert!(generated.len() > 900, "{generated}");
    generated
}
