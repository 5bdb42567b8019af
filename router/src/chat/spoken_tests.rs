//! Whatever a published chat template writes as an earlier answer, a model of that template may
//! generate while tools are offered, may end where the template ends it, and it is read back. The
//! templates have other authors, so they are test data outside of the repository.

use std::collections::BTreeSet;
use std::sync::Arc;

use millrace_answers::Constraint;
use millrace_answers::grammar::{GrammarCompiler, GrammarMatcher, MarkTokens};
use millrace_answers::reasoning::{ReasoningFormat, ReasoningStart};
use millrace_answers::tools::{AllowedTools, AnswerDelta, Tool, ToolChoice, ToolFormat, call_grammar};
use millrace_text::test_support::{self, assets_with, template_marks, test_data};
use millrace_text::{ChatTemplate, Conversation, SpecialTokens, Tokenizer};
use serde_json::{Map, Value, json};

use super::answer::AnswerFormat;
use super::published_tests::FORMATS;

const QUESTION: &str = "millracequestion";
const ANSWER: &str = "millraceanswer";
const REASONING: &str = "millracereasoning";

/// The parts of an assistant's answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<(String, Value)>,
}

impl Said {
    /// Returns the message for the template.
    fn message(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
            message["reasoning"] = self.reasoning.as_str().into();
            message["thinking"] = self.reasoning.as_str().into();
        }
        let call = |(index, (name, arguments)): (usize, &(String, Value))| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": format!("call0000{index}"), "type": "function", "function": function})
        };
        let calls: Vec<Value> = self.calls.iter().enumerate().map(call).collect();
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }
}

fn tools() -> Vec<Value> {
    let weather = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                         "required": ["city"]});
    let add = json!({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                     "required": ["a", "b"]});
    [("get_weather", "Returns the weather.", weather), ("add", "Adds two numbers.", add)]
        .map(|(name, description, parameters)| {
            let function = json!({"name": name, "description": description, "parameters": parameters});
            json!({"type": "function", "function": function})
        })
        .to_vec()
}

fn cases() -> Vec<(&'static str, Said)> {
    let weather = ("get_weather".to_owned(), json!({"city": "Köln <日本>", "days": 3}));
    let add = ("add".to_owned(), json!({"a": 1.5, "b": -2}));
    let said = |reasoning: &str, content: &str, calls: Vec<(String, Value)>| Said {
        reasoning: reasoning.into(),
        content: content.into(),
        calls,
    };
    vec![
        ("text", said("", ANSWER, vec![])),
        ("one call", said("", "", vec![weather.clone()])),
        ("two calls", said("", "", vec![weather.clone(), add.clone()])),
        ("text and call", said("", ANSWER, vec![weather.clone()])),
        ("thinking", said(REASONING, ANSWER, vec![])),
        ("thinking and calls", said(REASONING, "", vec![weather, add])),
    ]
}

/// A published template with a vocabulary.
pub(super) struct Model {
    template: ChatTemplate,
    tokenizer: Tokenizer,
    format: ToolFormat,
    pub(super) reasoning: Option<ReasoningFormat>,
    /// The tools that are offered.
    pub(super) tools: Vec<Value>,
}

impl Model {
    /// Loads a template. If `are_special`, everything in it that looks like a special token is one,
    /// otherwise only the tokens in bars, one of which ends a turn.
    pub(super) fn load(name: &'static str, are_special: bool) -> Self {
        let path = test_data("chat-templates").join(format!("templates/{name}.jinja"));
        let source = std::fs::read_to_string(path).unwrap();
        let format = ToolFormat::of(Some(&source), &test_support::tokenizer());
        let reasoning = ReasoningFormat::of(Some(&source));
        let own = format.syntax_marks().iter().copied().chain(reasoning.iter().flat_map(|reasoning| {
            let marks = reasoning.marks();
            [marks.open, marks.close].into_iter().chain(marks.tokens.iter().copied())
        }));
        let own: BTreeSet<&str> = own.collect();
        let tokens = reasoning.map_or(&[][..], |reasoning| reasoning.marks().tokens).iter();
        let tokens: Vec<String> =
            tokens.chain(format.syntax_marks()).map(|text| (*text).to_owned()).collect();
        let template = ChatTemplate::new(&source, None, Some("<s>".into()), Some("</s>".into()), 1).unwrap();
        let mut texts = template_marks(&source);
        // Some templates put their tokens together.
        let spoken = [("user", QUESTION), ("assistant", ANSWER), ("user", QUESTION)];
        let messages = spoken.map(|(role, content)| json!({"role": role, "content": content})).to_vec();
        let conversation = Conversation { messages, ..Conversation::default() };
        texts.extend(template_marks(&template.render_now(&conversation).unwrap_or_default()));
        // Other tags, such as those around arguments, are text in every vocabulary.
        let is_token =
            |text: &str| text.contains(['|', '｜']) || text.starts_with('[') || text.starts_with("<SPECIAL");
        texts.retain(|text| own.contains(text.as_str()) || is_token(text));
        match are_special {
            true => texts.extend(tokens),
            false => texts.retain(|text| !own.contains(text.as_str())),
        }
        texts.extend(["<sep>".to_owned(), "[e~[".to_owned(), "</assistant>".to_owned()]);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let tokenizer = Tokenizer::new(&assets_with(&texts)).unwrap();
        Model { template, tokenizer, format, reasoning, tools: tools() }
    }

    fn render(&self, messages: Vec<Value>, add_generation_prompt: bool, thinks: bool) -> Option<String> {
        let switches = ["enable_thinking", "thinking"].map(|name| (name.to_owned(), thinks.into()));
        let effort = thinks.then(|| ("reasoning_effort".to_owned(), "high".into()));
        let more: Map<String, Value> = switches.into_iter().chain(effort).collect();
        let tools = Some(self.tools.clone());
        let conversation =
            Conversation { messages, tools, add_generation_prompt, more, ..Conversation::default() };
        self.template.render_now(&conversation).ok()
    }

    /// Returns the prompt, the answer that the template writes, and the token that ends it. `None`
    /// if the template does not write this answer after this prompt.
    pub(super) fn written(&self, said: &Said) -> Option<(String, String, u32)> {
        let user = json!({"role": "user", "content": QUESTION});
        let thinks = !said.reasoning.is_empty();
        let prompt = self.render(vec![user.clone()], true, thinks)?;
        let whole = self.render(vec![user, said.message()], false, thinks)?;
        let rest = whole.strip_prefix(prompt.as_str())?;
        // The prompt of some templates opens reasoning that earlier messages do not have.
        let is_inside = self.reasoning.is_some_and(|format| format.start(&prompt) == ReasoningStart::Inside);
        if is_inside && !self.reasoning.is_some_and(|format| rest.contains(format.marks().close)) {
            return None;
        }
        // Some templates write two turns for a text and a call, or the next prompt.
        let turn = self.end_of_turn().filter(|(_, end)| rest.contains(end.as_str()));
        let rest = match &turn {
            Some((_, end)) => &rest[..rest.find(end.as_str())? + end.len()],
            None => rest,
        };
        let has_all = [&said.reasoning, &said.content].into_iter().all(|text| rest.contains(text.as_str()))
            && said.calls.iter().all(|(name, _)| rest.contains(name.as_str()));
        if !has_all {
            return None;
        }
        let trimmed = rest.trim_end();
        let ends = || self.specials().filter(|(_, text)| trimmed.ends_with(text.as_str()));
        let ends_turn = turn.is_some();
        let (id, end) = turn.or_else(|| ends().max_by_key(|(_, text)| text.len()))?;
        let answer = trimmed.strip_suffix(end.as_str())?;
        // The mark of a call that happens to be last does not end a turn.
        let is_own = !ends_turn && self.format.syntax_marks().contains(&end.as_str());
        (!is_own).then(|| (prompt, answer.to_owned(), id))
    }

    /// Returns the text that the template writes after the question, for templates whose prompt
    /// does not begin a conversation with its answer.
    pub(super) fn after_question(&self, said: &Said) -> Option<String> {
        let user = json!({"role": "user", "content": QUESTION});
        let whole = self.render(vec![user, said.message()], false, !said.reasoning.is_empty())?;
        whole.rsplit_once(QUESTION).map(|(_, answer)| answer.to_owned())
    }

    fn specials(&self) -> impl Iterator<Item = (u32, String)> {
        let ids = self.tokenizer.special_ids().iter();
        ids.filter_map(|&id| Some((id, self.tokenizer.vocabulary_text(id)?)))
    }

    /// Returns the special token that follows an assistant's message.
    fn end_of_turn(&self) -> Option<(u32, String)> {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let text =
            self.render(vec![message("user", QUESTION), message("assistant", ANSWER)], false, false)?;
        let (_, after) = text.rsplit_once(ANSWER)?;
        // Cohere's models also have tokens after each text.
        let is_end = |text: &str| !text.contains("END_TEXT") && !text.contains("END_RESPONSE");
        let after = after.trim_start();
        let after =
            after.strip_prefix("<|END_TEXT|>").or(after.strip_prefix("<|END_RESPONSE|>")).unwrap_or(after);
        // A token that follows several times closes parts of a message.
        let follows = |text: &str| after.starts_with(text) || after.contains("<|end_of_msg|>");
        let is_last = |text: &str| after.matches(text).count() == 1 && is_end(text);
        let found = self.specials().filter(|(_, text)| follows(text) && is_last(text));
        found.max_by_key(|(_, text)| text.len())
    }

    fn allowed(&self) -> AllowedTools {
        let tool = |tool: &Value| Tool {
            name: tool["function"]["name"].as_str().unwrap().into(),
            parameters: tool["function"]["parameters"].clone(),
        };
        AllowedTools {
            tools: self.tools.iter().map(tool).collect(),
            choice: ToolChoice::Auto,
            parallel: true,
        }
    }

    /// Returns the first token that the grammar does not allow, or says that the answer cannot end.
    async fn refused(&self, prompt: &str, answer: &str, end: u32) -> Option<String> {
        let tokens = MarkTokens::from(&self.tokenizer);
        let grammar = call_grammar(&self.allowed(), self.format, tokens, None)?;
        let grammar = self.answer_format(prompt).grammar_after_prompt(grammar, prompt, tokens);
        let _still = test_support::still_clock();
        let compiler = GrammarCompiler::new(self.tokenizer.clone(), Arc::new([end]));
        let compiled = compiler.compile(&grammar, self.tokenizer.size()).await.unwrap();
        let (mut matcher, mut mask) = (GrammarMatcher::new(compiled.clone()), compiled.first());
        let allows =
            |mask: &[u32], id: u32| mask.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
        let mut before = String::new();
        for id in self.tokenizer.encode_now(answer, SpecialTokens::Omit).unwrap().ids {
            if !allows(&mask, id) {
                return Some(format!("{:?} after {before:?}", self.tokenizer.vocabulary_text(id)));
            }
            before += &self.tokenizer.token_text(id);
            mask = matcher.advance(id).unwrap();
        }
        (!allows(&mask, end)).then(|| format!("the end after {before:?}"))
    }

    fn answer_format(&self, prompt: &str) -> AnswerFormat {
        AnswerFormat::after(self.format, self.reasoning, Some(self.allowed()), prompt)
    }

    fn read(&self, prompt: &str, answer: &str) -> Said {
        let format = self.answer_format(prompt);
        let shown = format.shown_tokens(&self.tokenizer);
        let mut detokenizer = self.tokenizer.detokenizer(true, true).showing(shown.into());
        let ids = self.tokenizer.encode_now(answer, SpecialTokens::Omit).unwrap().ids;
        let text: String = ids.into_iter().map(|id| detokenizer.push(id)).collect();
        self.read_pieces(prompt, &[&text])
    }

    /// Reads an answer that arrives in these pieces of text.
    pub(super) fn read_pieces(&self, prompt: &str, pieces: &[&str]) -> Said {
        let mut parser = self.answer_format(prompt).parser();
        let mut delta = AnswerDelta::default();
        pieces.iter().for_each(|piece| delta.extend(parser.push(piece, false)));
        delta.extend(parser.push("", true));
        let call = |call: millrace_answers::tools::CallDelta| {
            (call.name.unwrap(), serde_json::from_str(&call.arguments).unwrap_or(Value::Null))
        };
        Said {
            reasoning: delta.reasoning.trim().to_owned(),
            content: delta.content.trim().to_owned(),
            calls: delta.calls.into_iter().map(call).collect(),
        }
    }
}

#[tokio::test(start_paused = true)]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
async fn models_may_say_what_their_templates_write() {
    let (mut checked, mut wrong) = (0, Vec::new());
    let mut called = BTreeSet::new();
    for (name, calls, _) in FORMATS {
        for are_special in [true, false] {
            let model = Model::load(name, are_special);
            for (case, said) in cases() {
                let Some((prompt, answer, end)) = model.written(&said) else { continue };
                let refused = model.refused(&prompt, &answer, end).await;
                let read = model.read(&prompt, &answer);
                checked += 1;
                if !said.calls.is_empty() {
                    called.insert(calls);
                }
                if let Some(refused) = refused {
                    wrong.push(format!("{name}, {case}, special {are_special}: refuses {refused}"));
                }
                if read != said {
                    wrong.push(format!(
                        "{name}, {case}, special {are_special}: {answer:?} is read as {read:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{checked} answers: {wrong:#?}");
    assert!(checked >= 150, "{checked}");
    for format in ["gemma4", "hy3", "minicpm5", "kimi_k3", "muse", "functionary"] {
        assert!(called.contains(format), "{called:?}");
    }
}

/// The headers of messages are no part of an answer, also without tools and without a reasoning
/// parser.
#[test]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
fn headers_are_no_part_of_an_answer() {
    let text = Said { content: ANSWER.into(), ..Said::default() };
    let thought = Said { reasoning: REASONING.into(), content: ANSWER.into(), calls: Vec::new() };
    for (name, said) in [
        ("Kimi-K3", &text),
        ("Kimi-K3", &thought),
        ("muse-glimmer", &text),
        ("muse-glimmer", &thought),
        ("meetkai-functionary-medium-v3.2", &text),
    ] {
        let model = Model::load(name, true);
        let (prompt, answer, _) = model.written(said).unwrap();
        let format = AnswerFormat::after(model.format, model.reasoning, None, &prompt);
        let delta = format.parser().push(&answer, true);
        assert_eq!((&delta.reasoning, &delta.content), (&said.reasoning, &said.content), "{name}");
        // Kimi K3's and Muse Glimmer's tokens are shown to the parser.
        let shown = format.shown_tokens(&model.tokenizer);
        assert_eq!(shown.is_empty(), model.reasoning.is_none(), "{name}");
        let unsplit = AnswerFormat::after(model.format, None, None, &prompt);
        assert_eq!(unsplit.parser().push(&answer, true).content, said.content, "{name}");
    }
}
