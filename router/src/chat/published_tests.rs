//! Tests the detection of formats, and reads the answers that published chat templates write. The
//! templates have other authors, so they are test data outside of the repository.

use millrace_answers::reasoning::{ReasoningFormat, ReasoningSplitter};
use millrace_answers::tools::{AllowedTools, Tool, ToolCallParser, ToolChoice, ToolFormat};
use millrace_text::{ChatTemplate, Conversation};
use serde_json::{Map, Value, json};

use crate::test_support::{self, test_data};

/// Each template with the format of its calls and the format of its reasoning.
pub(super) const FORMATS: [(&str, &str, &str); 36] = [
    ("Apertus-8B-Instruct", "apertus", "apertus"),
    ("Bielik-11B-v3.0-Instruct", "hermes", "think"),
    ("Cohere2MoE", "cohere", "cohere"),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere", "cohere"),
    ("GLM-4.7-Flash", "glm45", "think"),
    ("GigaChat3.1-10B-A1.8B", "gigachat", ""),
    ("Kimi-K2-Instruct", "kimi_k2", ""),
    ("Kimi-K3", "json", ""),
    ("LFM2.5-8B-A1B", "lfm2", "think"),
    ("MiMo-VL", "hermes", ""),
    ("MiniMax-M2", "minimax_m2", "think"),
    ("Mistral-Small-3.2-24B-Instruct-2506", "mistral_v11", ""),
    ("NVIDIA-Nemotron-Nano-v2", "nemotron", "think"),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", ""),
    ("Qwen-Qwen2.5-7B-Instruct", "hermes", ""),
    ("Qwen3-Coder", "qwen3_coder", ""),
    ("Reka-Edge", "hermes", "think"),
    ("StepFun3.5-Flash", "qwen3_coder", "think"),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3", "think"),
    ("deepseek-ai-DeepSeek-V3.2", "deepseek_v32", "think"),
    ("deepseek-ai-DeepSeek-V4", "deepseek_v4", "think"),
    ("google-gemma-2-2b-it", "json", ""),
    ("google-gemma-4-31B-it", "gemma4", "gemma4"),
    ("ibm-granite-granite-4.0", "hermes", ""),
    ("inclusionai-ling-3.0-flash", "glm45", "think"),
    ("llama-cpp-rwkv-world", "json", "think"),
    ("meetkai-functionary-medium-v3.2", "json", ""),
    ("meta-llama-Llama-3.1-8B-Instruct", "llama3_json", ""),
    ("meta-llama-Llama-3.2-3B-Instruct", "llama3_json", ""),
    ("microsoft-Phi-3.5-mini-instruct", "json", ""),
    ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", ""),
    // The calls of these models have formats that are not supported.
    ("muse-glimmer", "json", ""),
    ("openbmb-MiniCPM5-1B", "minicpm5", "think"),
    ("poolside-Laguna-XS-2.1", "glm45", "think"),
    ("tencent-Hy3", "hy3", "hy3"),
    ("unsloth-mistral-Devstral-Small-2507", "mistral_v11", ""),
];

fn source(name: &str) -> String {
    let path = test_data("chat-templates").join(format!("templates/{name}.jinja"));
    std::fs::read_to_string(path).unwrap()
}

fn template(name: &str) -> ChatTemplate {
    ChatTemplate::new(&source(name), None, Some("<s>".into()), Some("</s>".into()), 1).unwrap()
}

#[test]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
fn published_templates_show_their_formats() {
    let tokenizer = test_support::tokenizer();
    let found: Vec<(&str, String, &str)> = FORMATS
        .iter()
        .map(|(name, ..)| {
            let source = source(name);
            let calls = ToolFormat::of(Some(&source), &tokenizer).to_string();
            (*name, calls, ReasoningFormat::of(Some(&source)).map_or("", ReasoningFormat::name))
        })
        .collect();
    let expected: Vec<_> =
        FORMATS.iter().map(|(name, calls, reasoning)| (*name, (*calls).to_owned(), *reasoning)).collect();
    assert_eq!(found, expected);
}

/// The function of a call and its arguments.
type Call = (String, Value);

/// Returns a conversation up to the assistant's calls, without arguments that are null: some
/// templates write the null of Python, which a parameter of the type string takes literally.
fn conversation(conversations: &Value, name: &str) -> (Conversation, Vec<Call>) {
    let asked = &conversations[name];
    let mut messages = asked["messages"].as_array().unwrap().clone();
    let last = messages.iter().position(|message| message["tool_calls"].is_array()).unwrap();
    messages.truncate(last + 1);
    let mut calls = Vec::new();
    for call in messages[last]["tool_calls"].as_array_mut().unwrap() {
        call["function"]["arguments"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let function = &call["function"];
        calls.push((function["name"].as_str().unwrap().to_owned(), function["arguments"].clone()));
    }
    let tools = asked["tools"].as_array().cloned();
    (Conversation { messages, tools, ..Conversation::default() }, calls)
}

fn allowed(tools: &[Value]) -> AllowedTools {
    let tool = |tool: &Value| Tool {
        name: tool["function"]["name"].as_str().unwrap().into(),
        parameters: tool["function"]["parameters"].clone(),
    };
    AllowedTools { tools: tools.iter().map(tool).collect(), choice: ToolChoice::Auto, parallel: true }
}

/// Parses an answer, one character at a time.
fn parse(format: ToolFormat, tools: &AllowedTools, answer: &str) -> Vec<Call> {
    let mut parser = ToolCallParser::new(format, tools);
    let mut delta = parser.push("");
    answer.chars().for_each(|c| delta.extend(parser.push(c.encode_utf8(&mut [0; 4]))));
    delta.extend(parser.finish());
    let call = |call: millrace_answers::tools::CallDelta| {
        (call.name.unwrap(), serde_json::from_str(&call.arguments).unwrap_or(Value::Null))
    };
    delta.calls.into_iter().map(call).collect()
}

#[test]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
fn the_calls_that_published_templates_write_are_read() {
    let path = test_data("chat-templates").join("conversations.json");
    let conversations: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tokenizer = test_support::tokenizer();
    let (mut read, mut wrong) = (Vec::new(), Vec::new());
    for (name, calls, _) in FORMATS.iter().filter(|(_, calls, _)| *calls != "json") {
        let format = ToolFormat::of(Some(&source(name)), &tokenizer);
        for case in ["call_empty", "parallel"] {
            let (conversation, expected) = conversation(&conversations, case);
            // Some templates write one call only.
            let Ok(text) = template(name).render_now(&conversation) else { continue };
            let question =
                conversation.messages[conversation.messages.len() - 2]["content"].as_str().unwrap();
            let (_, answer) = text.rsplit_once(question).unwrap();
            let answer = match *calls {
                "llama3_json" => &answer[answer.find('{').unwrap()..],
                _ => answer,
            };
            let found = parse(format, &allowed(conversation.tools.as_deref().unwrap()), answer);
            if found == expected {
                read.push((*name, case));
            } else {
                wrong.push(format!("{name}, {case}: {answer:?}: {found:?}"));
            }
        }
    }
    // GigaChat's template writes the first call only.
    assert!(wrong.iter().all(|wrong| wrong.starts_with("GigaChat3.1-10B-A1.8B, parallel")), "{wrong:#?}");
    assert!(read.len() >= 46, "{read:?}");
}

/// The reasoning of an earlier message that a template shows is read back.
#[test]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
fn the_reasoning_that_published_templates_write_is_read() {
    let mut read = Vec::new();
    for (name, _, reasoning) in FORMATS.iter().filter(|(.., reasoning)| !reasoning.is_empty()) {
        let format = ReasoningFormat::of(Some(&source(name))).unwrap();
        let user = json!({"role": "user", "content": "millracequestion"});
        let answer =
            json!({"role": "assistant", "content": "millraceanswer", "reasoning_content": "because"});
        let render = |messages: Vec<Value>, add_generation_prompt, thinks: bool| {
            let more: Map<String, Value> = ["enable_thinking", "thinking"]
                .map(|name| (name.to_owned(), thinks.into()))
                .into_iter()
                .collect();
            let tools = name.ends_with("tool_use").then(Vec::new);
            let conversation =
                Conversation { messages, add_generation_prompt, more, tools, ..Conversation::default() };
            template(name).render_now(&conversation).unwrap_or_default()
        };
        let whole = render(vec![user.clone(), answer], false, true);
        let prompt = render(vec![user], true, true);
        let Some(rest) = whole.strip_prefix(prompt.as_str()) else { continue };
        let mut splitter = ReasoningSplitter::new(format.marks(), format.start(&prompt));
        let mut split = splitter.push(rest);
        split.reasoning += &splitter.finish().reasoning;
        if rest.contains("because") {
            assert_eq!(split.reasoning, "because", "{name} ({reasoning}): {rest:?}");
            assert!(split.answer.contains("millraceanswer"), "{name}: {rest:?}");
            read.push(*name);
        }
    }
    assert!(read.len() >= 6, "{read:?}");
}
