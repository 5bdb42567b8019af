//! Tests the detection of formats, and reads the answers that published chat templates write. The
//! templates have other authors, so they are test data outside of the repository.

use millrace_answers::reasoning::ReasoningFormat;
use millrace_answers::tools::{AllowedTools, AnswerDelta, Tool, ToolChoice, ToolFormat};
use millrace_text::{ChatTemplate, Conversation};
use serde_json::{Map, Value, json};

use super::answer::AnswerFormat;
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
    ("Kimi-K3", "kimi_k3", "kimi_k3"),
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
    ("meetkai-functionary-medium-v3.2", "functionary", ""),
    ("meta-llama-Llama-3.1-8B-Instruct", "llama3_json", ""),
    ("meta-llama-Llama-3.2-3B-Instruct", "llama3_json", ""),
    ("microsoft-Phi-3.5-mini-instruct", "json", ""),
    ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", ""),
    ("muse-glimmer", "muse", "muse"),
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

/// The user's message, which is found in rendered conversations.
const QUESTION: &str = "millracequestion";

/// The function of a call and its arguments.
type Call = (String, Value);

/// Returns a conversation up to the assistant's calls, without arguments that are null: some
/// templates write the null of Python, which a parameter of the type string takes literally.
fn conversation(conversations: &Value, name: &str) -> (Conversation, Vec<Call>) {
    let asked = &conversations[name];
    let mut messages = asked["messages"].as_array().unwrap().clone();
    let last = messages.iter().position(|message| message["tool_calls"].is_array()).unwrap();
    messages.truncate(last + 1);
    messages[last - 1]["content"] = QUESTION.into();
    let mut calls = Vec::new();
    for call in messages[last]["tool_calls"].as_array_mut().unwrap() {
        call["function"]["arguments"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let function = &call["function"];
        calls.push((function["name"].as_str().unwrap().to_owned(), function["arguments"].clone()));
    }
    let tools = asked["tools"].as_array().cloned();
    (Conversation { messages, tools, ..Conversation::default() }, calls)
}

/// Returns the prompt and the answer of a rendered conversation whose last message is the answer.
/// The prompt of some templates does not begin the conversation with its answer. Then the answer is
/// the text after the question, and there is no prompt.
fn prompt_and_answer(name: &str, conversation: &Conversation, text: &str) -> (Option<String>, String) {
    let mut asked = conversation.clone();
    let question = asked.messages.len() - 2;
    asked.messages.truncate(question + 1);
    asked.add_generation_prompt = true;
    let prompt = template(name).render_now(&asked).unwrap();
    match text.strip_prefix(prompt.as_str()) {
        Some(answer) => (Some(prompt), answer.to_owned()),
        None => (None, text.rsplit_once(QUESTION).unwrap().1.to_owned()),
    }
}

/// Returns the calls of an answer that arrives in these pieces.
fn parse<'a>(format: &AnswerFormat, pieces: impl Iterator<Item = &'a str>) -> Vec<Call> {
    let mut parser = format.parser();
    let mut delta = parser.push("", false);
    pieces.for_each(|piece| delta.extend(parser.push(piece, false)));
    delta.extend(parser.push("", true));
    let call = |call: millrace_answers::tools::CallDelta| {
        (call.name.unwrap(), serde_json::from_str(&call.arguments).unwrap_or(Value::Null))
    };
    delta.calls.into_iter().map(call).collect()
}

/// The conversations in which the assistant calls tools.
const CALLING: [&str; 4] = ["call_empty", "call_absent", "parallel", "call_noname"];

/// The templates without a place for calls.
pub(super) const WITHOUT_CALLS: [&str; 3] =
    ["google-gemma-2-2b-it", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct"];

/// The conversations that templates refuse in Python too: one changes a list, and others refuse a
/// message without content, or several calls.
const REFUSED: [(&str, &str); 8] = [
    ("Kimi-K2-Instruct", "call_empty"),
    ("Kimi-K2-Instruct", "call_absent"),
    ("Kimi-K2-Instruct", "parallel"),
    ("Kimi-K2-Instruct", "call_noname"),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "call_absent"),
    ("meta-llama-Llama-3.1-8B-Instruct", "parallel"),
    ("meta-llama-Llama-3.2-3B-Instruct", "parallel"),
    ("unsloth-mistral-Devstral-Small-2507", "call_absent"),
];

#[test]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
fn the_calls_that_published_templates_write_are_read() {
    let path = test_data("chat-templates").join("conversations.json");
    let conversations: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tokenizer = test_support::tokenizer();
    let (mut read, mut refused, mut wrong) = (0, Vec::new(), Vec::new());
    for (name, calls, _) in FORMATS.iter().filter(|(name, ..)| !WITHOUT_CALLS.contains(name)) {
        let source = source(name);
        let (format, reasoning) =
            (ToolFormat::of(Some(&source), &tokenizer), ReasoningFormat::of(Some(&source)));
        for case in CALLING {
            let (conversation, mut expected) = conversation(&conversations, case);
            let Ok(text) = template(name).render_now(&conversation) else {
                refused.push((*name, case));
                continue;
            };
            // This template writes the first call only.
            if *calls == "gigachat" {
                expected.truncate(1);
            }
            let (prompt, answer) = prompt_and_answer(name, &conversation, &text);
            let answer = match *calls {
                "llama3_json" => &answer[answer.find('{').unwrap()..],
                // The arguments of a call are a whole message, which the end token ends.
                "functionary" => answer.strip_suffix("<|eot_id|>").unwrap(),
                _ => answer.as_str(),
            };
            let reasoning = reasoning.filter(|_| prompt.is_some());
            let tools = allowed(conversation.tools.as_deref().unwrap());
            let format =
                AnswerFormat::after(format, reasoning, Some(tools), prompt.as_deref().unwrap_or_default());
            let whole = parse(&format, std::iter::once(answer));
            let streamed =
                parse(&format, answer.char_indices().map(|(at, c)| &answer[at..at + c.len_utf8()]));
            if whole == expected && streamed == expected {
                read += 1;
            } else {
                wrong.push(format!("{name}, {case}: {answer:?}: {whole:?}, streamed {streamed:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(refused, REFUSED);
    assert_eq!(read + refused.len(), CALLING.len() * (FORMATS.len() - WITHOUT_CALLS.len()));
}

fn allowed(tools: &[Value]) -> AllowedTools {
    let tool = |tool: &Value| Tool {
        name: tool["function"]["name"].as_str().unwrap().into(),
        parameters: tool["function"]["parameters"].clone(),
    };
    AllowedTools { tools: tools.iter().map(tool).collect(), choice: ToolChoice::Auto, parallel: true }
}

/// The reasoning of an earlier message that a template shows is read back.
#[test]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
fn the_reasoning_that_published_templates_write_is_read() {
    let tokenizer = test_support::tokenizer();
    let mut read = Vec::new();
    for (name, _, reasoning) in FORMATS.iter().filter(|(.., reasoning)| !reasoning.is_empty()) {
        let format = ReasoningFormat::of(Some(&source(name))).unwrap();
        let user = json!({"role": "user", "content": QUESTION});
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
        if rest.contains("because") {
            let calls = ToolFormat::of(Some(&source(name)), &tokenizer);
            let tools = AllowedTools { tools: Vec::new(), choice: ToolChoice::Auto, parallel: true };
            let format = AnswerFormat::after(calls, Some(format), Some(tools), &prompt);
            let whole = format.parser().push(rest, true);
            let mut parser = format.parser();
            let mut streamed = AnswerDelta::default();
            rest.chars().for_each(|c| streamed.extend(parser.push(c.encode_utf8(&mut [0; 4]), false)));
            streamed.extend(parser.push("", true));
            assert_eq!(streamed, whole, "{name}");
            assert_eq!(whole.reasoning, "because", "{name} ({reasoning}): {rest:?}");
            // The tokens around the text of some models are hidden.
            assert!(whole.content.contains("millraceanswer"), "{name}: {rest:?}");
            read.push(*name);
        }
    }
    assert!(read.len() >= 6, "{read:?}");
}
