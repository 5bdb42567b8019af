//! Compares published chat templates with the renderings of transformers. The templates,
//! conversations and renderings have other authors, so they are test data outside of the
//! repository.

use std::path::{Path, PathBuf};

use chrono::{Local, NaiveDate};
use serde_json::Value;

use super::ChatTemplate;
use crate::Conversation;
use crate::TemplateError;

/// The date formats that templates use.
const DAYS: [&str; 5] = ["%Y-%m-%d", "%d %B %Y", "%d %b %Y", "%B %d, %Y", "%b %d %Y"];

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn conversation(asked: &Value) -> Conversation {
    let list = |field: &str| asked[field].as_array().cloned();
    Conversation {
        messages: list("messages").unwrap(),
        tools: list("tools"),
        documents: list("documents"),
        more: asked["kw"].as_object().cloned().unwrap_or_default(),
        add_generation_prompt: asked["add_generation_prompt"].as_bool().unwrap_or(true),
    }
}

/// Replaces today's date by the day on which transformers rendered the conversations.
fn on_that_day(text: String) -> String {
    let (today, then) = (Local::now().date_naive(), NaiveDate::from_ymd_opt(2026, 11, 22).unwrap());
    DAYS.iter().fold(text, |text, form| {
        text.replace(&today.format(form).to_string(), &then.format(form).to_string())
    })
}

#[derive(Debug, Default)]
struct Counts {
    equal: usize,
    refused_by_both: usize,
    refused_by_transformers: usize,
    wrongly_refused: usize,
    differing: usize,
}

#[test]
#[ignore = "needs 36 published templates that are not part of the repository: MILLRACE_TEST_DATA names the folder of chat-templates"]
fn published_templates_are_rendered_as_transformers_renders_them() {
    let root = PathBuf::from(std::env::var_os("MILLRACE_TEST_DATA").expect("MILLRACE_TEST_DATA"))
        .join("chat-templates");
    let (conversations, expected) =
        (read(&root.join("conversations.json")), read(&root.join("expected.json")));
    let (mut counts, mut wrong) = (Counts::default(), Vec::new());
    for (template, cases) in expected.as_object().unwrap() {
        let source = std::fs::read_to_string(root.join(format!("templates/{template}.jinja"))).unwrap();
        let token = |text: &str| Some(text.to_owned());
        let compiled = ChatTemplate::new(&source, None, token("<s>"), token("</s>"), 1);
        for (name, case) in cases.as_object().unwrap() {
            let rendered = compiled
                .clone()
                .and_then(|template| template.render_now(&conversation(&conversations[name])));
            let rendered = rendered.map(on_that_day);
            let count = match (case["text"].as_str(), &rendered) {
                (Some(text), Ok(rendered)) if text == rendered => &mut counts.equal,
                (None, Err(TemplateError::Render(_))) => &mut counts.refused_by_both,
                (None, _) => &mut counts.refused_by_transformers,
                (Some(_), Err(_)) => &mut counts.wrongly_refused,
                (Some(_), Ok(_)) => &mut counts.differing,
            };
            *count += 1;
            if case["text"].as_str().is_some_and(|text| rendered.as_deref() != Ok(text)) {
                wrong.push(format!("{template}/{name}:\n{rendered:?}\n{case}"));
            }
        }
    }
    println!("{counts:?}");
    assert!(wrong.is_empty(), "{counts:?}\n{}", wrong.join("\n"));
    assert!(counts.equal >= 672, "{counts:?}");
}
