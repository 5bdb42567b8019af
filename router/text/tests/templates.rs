//! Compares chat templates of twenty families with the renderings of transformers.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::path::Path;

use millrace_text::{ChatTemplate, Conversation, TemplateError};
use serde_json::Value;

fn list(conversation: &Value, field: &str) -> Option<Vec<Value>> {
    conversation[field].as_array().cloned()
}

#[test]
fn every_template_is_rendered_as_transformers_renders_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden/templates.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let token = |name: &str| golden[name].as_str().map(str::to_owned);
    let (mut texts, mut refusals, mut wrong) = (0, 0, Vec::new());
    for template in golden["templates"].as_array().unwrap() {
        let source = template["template"].as_str().unwrap();
        let compiled = ChatTemplate::new(source, None, token("bos_token"), token("eos_token"), 1).unwrap();
        for case in template["cases"].as_array().unwrap() {
            let name = case["conversation"].as_str().unwrap();
            let asked = &golden["conversations"][name];
            let conversation = Conversation {
                messages: list(asked, "messages").unwrap(),
                tools: list(asked, "tools"),
                documents: list(asked, "documents"),
                more: asked["more"].as_object().unwrap().clone(),
                add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            };
            let expected = match (case["text"].as_str(), case["error"].as_str()) {
                (Some(text), _) => Ok(text.to_owned()),
                (_, error) => Err(TemplateError::Render(error.unwrap().to_owned())),
            };
            texts += usize::from(expected.is_ok());
            refusals += usize::from(expected.is_err());
            let got = compiled.render_now(&conversation);
            if got != expected {
                wrong.push(format!("{} {name}:\n{got:?}\n{expected:?}", template["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), texts + refusals, wrong.join("\n"));
    assert!(texts >= 300 && refusals >= 10, "{texts} texts, {refusals} refusals");
}
