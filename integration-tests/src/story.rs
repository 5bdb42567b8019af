//! A text long enough for something to happen in its midst.

use serde_json::{Value, json};

use crate::{Server, stream};

/// A long greedy text of the demo model, in the midst of which `happens`. The marks that would end it early are ruled out.
pub fn long_story(server: &Server, happens: impl FnOnce()) -> String {
    let request = json!({
        "model": "tgi", "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "stream": true,
        "logit_bias": {"0": -100, "1": -100, "2": -100},
    });
    let text = |event: Value| match event["choices"][0]["text"].as_str() {
        Some(text) => text.to_owned(),
        None => panic!("{event}\n{}", server.log()),
    };
    let mut events = stream(&server.url("/v1/completions"), &request);
    let mut story = text(events.next().unwrap());
    happens();
    events.for_each(|event| story += &text(event));
    assert!(story.len() > 900, "{story}");
    story
}
