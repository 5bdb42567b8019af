//! Chat templates: a conversation as the text that the model was trained on.
//!
//! A template comes with the model and is run on what clients send, so it runs in a sandbox: no files, no imports,
//! and bounded in instructions, depth, output and time. Special tokens that a client has written are hidden from it and
//! are told from the template's own in what it writes; see [`guard`](super::guard).

use std::collections::HashSet;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::guard::{Guard, Rendered};

#[cfg(test)]
mod jinja_tests;
mod messages;
#[cfg(test)]
mod published_tests;
mod python;
mod shape;

/// Instructions of the template engine; the longest published templates need some thousands per message.
const FUEL: u64 = 20_000_000;
/// Nested calls of macros and blocks.
const DEPTH: usize = 100;
/// Bytes that a template may write.
const OUTPUT: usize = 16 << 20;
/// Time until the client is answered; the fuel ends the work itself.
const TIME: Duration = Duration::from_secs(5);

/// Special tokens in the assistant's words for which it is found out whether the template looks for them, which costs one
/// more rendering each.
const MOST_SHOWN: usize = 4;

/// The names of a model's templates.
const CHAT: &str = "chat";
const CHAT_WITH_TOOLS: &str = "chat with tools";

/// Why a conversation could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The model has no template.
    #[error("template not found")]
    Missing,
    /// The template does not parse.
    #[error("the chat template is not valid: {0}")]
    Syntax(String),
    /// The template refused the conversation or broke off.
    #[error("{0}")]
    Render(String),
}

/// What a template is given.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Conversation {
    /// The messages as the client sent them, with their text as one string each.
    pub messages: Vec<serde_json::Value>,
    /// Tools as the client sent them.
    pub tools: Option<Vec<serde_json::Value>>,
    /// Documents as the client sent them.
    pub documents: Option<Vec<serde_json::Value>>,
    /// Further variables of the template, such as `enable_thinking`. They never hide the usual ones.
    pub more: serde_json::Map<String, serde_json::Value>,
    /// End with the start of the assistant's turn.
    pub add_generation_prompt: bool,
}

/// A compiled chat template. Clones are the same one.
#[derive(Debug, Clone)]
pub struct ChatTemplate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    environment: Environment<'static>,
    /// Variables that it looks at, wherever it comes from: those of its variant for tools are among them.
    variables: HashSet<String>,
    writes_calls: bool,
    /// Every word in its text that could be the name of a variable.
    names: HashSet<String>,
    /// Words that it has in quotes, the roles that it knows among them.
    words: HashSet<String>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    workers: Semaphore,
}

impl ChatTemplate {
    /// Compiles a template, and perhaps another one for conversations with tools; at most `workers` conversations are
    /// rendered at the same time.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] with the line.
    pub fn new(
        source: &str,
        with_tools: Option<&str>,
        bos_token: Option<String>,
        eos_token: Option<String>,
        workers: usize,
    ) -> Result<Self, TemplateError> {
        [Some(source), with_tools].into_iter().flatten().try_for_each(shape::check)?;
        let (environment, variables) = shape::on_large_stack(|| compile(source, with_tools))?;
        let texts = || [Some(source), with_tools].into_iter().flatten();
        let workers = Semaphore::new(workers.max(1));
        Ok(ChatTemplate(Arc::new(Inner {
            environment,
            variables,
            writes_calls: texts().any(|text| text.contains("tool_calls")),
            names: texts().flat_map(names).map(str::to_owned).collect(),
            words: texts().flat_map(words).collect(),
            bos_token,
            eos_token,
            workers,
        })))
    }

    /// Whether the template looks at this variable.
    pub fn mentions(&self, variable: &str) -> bool {
        self.0.variables.contains(variable)
    }

    /// Whether the template could look at this variable, under any conditions: a variable that it gives a default to
    /// ([`mentions`](Self::mentions) does not count those) is one.
    pub fn may_read(&self, variable: &str) -> bool {
        self.0.names.contains(variable)
    }

    /// Whether the template writes the calls of earlier messages. It is known by their field's name in its text.
    pub fn writes_calls(&self) -> bool {
        self.0.writes_calls
    }

    /// Whether the template has this word in quotes, as it has the names of the roles that it treats in their own way.
    pub fn quotes(&self, word: &str) -> bool {
        self.0.words.contains(word)
    }

    /// Renders a conversation away from the async threads; `guard` has hidden the special tokens in it.
    ///
    /// # Errors
    /// [`TemplateError::Render`] with the template's own words where it has some.
    pub async fn render(&self, conversation: Conversation, guard: Guard) -> Result<Rendered, TemplateError> {
        let stopped = || TemplateError::Render("worker has stopped".into());
        let template = self.clone();
        let work = async move {
            let task = tokio::task::spawn_blocking({
                let permit = template.0.clone();
                // The permit is taken before and given back by the work itself, so that a template that is still
                // busy after its client was answered counts.
                let held = permit.workers.acquire().await.map_err(|_| stopped())?;
                held.forget();
                move || {
                    let _release = Release(&permit.workers);
                    template.render_guarded_now(conversation, &guard)
                }
            });
            task.await.unwrap_or_else(|_| Err(stopped()))
        };
        tokio::time::timeout(TIME, work)
            .await
            .unwrap_or_else(|_| Err(TemplateError::Render(format!("took longer than {} s", TIME.as_secs()))))
    }

    /// Renders a conversation on this thread, whose special tokens `guard` has hidden.
    ///
    /// A template may look for a special token in what the assistant has said before, for instance to leave out its
    /// reasoning. Such tokens are found by rendering the conversation with and without each of them, and are shown to the
    /// template. All others stay hidden from it.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_now`].
    pub fn render_guarded_now(
        &self,
        mut conversation: Conversation,
        guard: &Guard,
    ) -> Result<Rendered, TemplateError> {
        let written = |conversation: &Conversation| match self.render_now(conversation) {
            Ok(text) => Ok(guard.reveal(&text)),
            Err(TemplateError::Render(why)) => Err(TemplateError::Render(guard.reveal(&why).text)),
            Err(other) => Err(other),
        };
        let hidden = written(&conversation);
        let mut shown = Vec::new();
        for token in guard.said_by_assistant().take(MOST_SHOWN) {
            let mut variant = conversation.clone();
            guard.show(&mut variant, &[token]);
            let matters = written(&variant).is_ok_and(|variant| match &hidden {
                Ok(hidden) => hidden.text != variant.text,
                Err(_) => true,
            });
            if matters {
                shown.push(token);
            }
        }
        if shown.is_empty() {
            return hidden;
        }
        guard.show(&mut conversation, &shown);
        written(&conversation)
    }

    /// Renders a conversation on this thread. If the template fails with the arguments of calls as objects, it is given their
    /// JSON as texts.
    ///
    /// # Errors
    /// [`TemplateError::Render`] with the template's own words where it has some.
    pub fn render_now(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let conversation = messages::with_reasoning(conversation);
        let rendered = self.render_once(&conversation);
        if !matches!(rendered, Err(TemplateError::Render(_))) {
            return rendered;
        }
        match messages::with_written_arguments(&conversation) {
            // What is wrong with the conversation itself is said by the first attempt.
            Some(written) => self.render_once(&written).or(rendered),
            None => rendered,
        }
    }

    fn render_once(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let render = |error: Error| TemplateError::Render(described(&error));
        let with_tools =
            conversation.tools.as_ref().and_then(|_| self.0.environment.get_template(CHAT_WITH_TOOLS).ok());
        let template = match with_tools {
            Some(template) => template,
            None => self.0.environment.get_template(CHAT).map_err(render)?,
        };
        let more: Value =
            conversation.more.iter().map(|(name, value)| (name.as_str(), python::value_of(value))).collect();
        let variables = context! {
            messages => python::list_of(&conversation.messages),
            tools => conversation.tools.as_deref().map(python::list_of),
            documents => conversation.documents.as_deref().map(python::list_of),
            add_generation_prompt => conversation.add_generation_prompt,
            bos_token => self.0.bos_token.clone().unwrap_or_default(),
            eos_token => self.0.eos_token.clone().unwrap_or_default(),
            ..more
        };
        let mut output = Bounded(Vec::new());
        // minijinja panics at some mistakes of templates, such as slicing an empty list backwards.
        let rendered = catch_unwind(AssertUnwindSafe(|| template.render_captured_to(variables, &mut output)));
        rendered.map_err(|_| TemplateError::Render("the chat template failed".into()))?.map_err(render)?;
        String::from_utf8(output.0).map_err(|e| TemplateError::Render(e.to_string()))
    }
}

/// The environment that renders a template and perhaps its variant for tools, and the variables that they look at.
fn compile(
    source: &str,
    with_tools: Option<&str>,
) -> Result<(Environment<'static>, HashSet<String>), TemplateError> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(DEPTH);
    python::install(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    let mut variables = HashSet::new();
    for (name, source) in [(CHAT, Some(source)), (CHAT_WITH_TOOLS, with_tools)] {
        let Some(source) = source else { continue };
        environment
            .add_template_owned(name, python::without_percent(&without_generation_tags(source)))
            .map_err(|e| TemplateError::Syntax(e.to_string()))?;
        if let Ok(template) = environment.get_template(name) {
            variables.extend(template.undeclared_variables(false));
        }
    }
    Ok((environment, variables))
}

/// Words that could be names of variables, wherever they are.
fn names(source: &str) -> impl Iterator<Item = &str> {
    let words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.len() <= 64 && word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
}

/// Words of at most 64 letters, digits, dashes and underscores that stand in quotes.
fn words(source: &str) -> impl Iterator<Item = String> {
    source.char_indices().filter(|&(_, c)| matches!(c, '\'' | '"')).filter_map(|(at, quote)| {
        let rest = &source[at + 1..];
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let end = rest.char_indices().take(65).find(|&(_, c)| !is_word(c))?;
        (end.0 > 0 && end.1 == quote).then(|| rest[..end.0].to_owned())
    })
}

struct Release<'a>(&'a Semaphore);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT {
            return Err(io::Error::other("more than 16 MiB of text"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn described(error: &Error) -> String {
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        // `raise_exception` is meant for the client as it is.
        Some(line) if error.kind() != ErrorKind::InvalidOperation => format!("{text} (line {line})"),
        _ => text,
    }
}

/// `generation` blocks mark the assistant's words for training and write what they hold.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((inner, after)) = tag.split_once("%}") else { break };
        let replaced = match inner.trim_matches(['-', '+']).trim() {
            "generation" => inner.replace("generation", "if true"),
            "endgeneration" => inner.replace("endgeneration", "endif"),
            _ => inner.to_owned(),
        };
        result.extend([before, "{%", &replaced, "%}"]);
        rest = after;
    }
    result + rest
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    use std::fmt::Write;
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now: bad format {format:?}"))
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: serde_json::Value) -> Result<String, TemplateError> {
        let template = ChatTemplate::new(source, None, Some("<s>".into()), Some("</s>".into()), 1)?;
        let serde_json::Value::Array(messages) = messages else { panic!("not a list") };
        template.render_now(&Conversation {
            messages,
            add_generation_prompt: true,
            ..Conversation::default()
        })
    }

    #[test]
    fn what_templates_use_works() {
        let user = json!([{"role": "user", "content": "a <b> 'ü'"}]);
        let cases = [
            (
                "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content.strip() }}{% endfor %}{{ eos_token }}",
                "<s>[user]a <b> 'ü'</s>",
            ),
            ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": "a <b> 'ü'"}"#),
            ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
            ("{{ 'ü' | tojson(ensure_ascii=true) }}", r#""\u00fc""#),
            ("{{ {'b': 1, 'a': []} | tojson(sort_keys=true, separators=(',', ':')) }}", r#"{"a":[],"b":1}"#),
            (
                "{% for m in messages %}\n  {% generation %}\n{{ m.role }}{% endgeneration %}{% endfor %}",
                "user",
            ),
            ("{%- for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
            ("{{ tools is none }} {{ 'a' if add_generation_prompt }}", "True a"),
            ("{{ (messages + [1])[::-1][0] }}", "1"),
            ("{{ strftime_now('%Y') | length }}", "4"),
            ("{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}", "3"),
            ("{{ messages[0]['content'].split(' ')[1].startswith('<') }}", "True"),
        ];
        for (source, expected) in cases {
            assert_eq!(render(source, user.clone()).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn tools_and_other_variables_are_given_to_whom_looks_at_them() {
        let plain = "{{ enable_thinking is defined }}{{ documents is none }}{{ bos_token }}";
        let with_tools = "{{ tools[0].name }}{{ documents[0].text }}{{ enable_thinking }}";
        let template = ChatTemplate::new(plain, Some(with_tools), Some("<s>".into()), None, 1).unwrap();
        assert!(
            template.mentions("tools") && template.mentions("enable_thinking") && !template.mentions("top")
        );
        assert_eq!(template.render_now(&Conversation::default()).as_deref(), Ok("FalseTrue<s>"));
        let more = json!({"enable_thinking": false, "bos_token": "hidden"}).as_object().unwrap().clone();
        let conversation = Conversation {
            tools: Some(vec![json!({"name": "f"})]),
            documents: Some(vec![json!({"text": "d"})]),
            more,
            ..Conversation::default()
        };
        assert_eq!(template.render_now(&conversation).as_deref(), Ok("fdFalse"));
        let conversation = Conversation { tools: None, ..conversation };
        assert_eq!(template.render_now(&conversation).as_deref(), Ok("TrueFalse<s>"));
    }

    #[test]
    fn a_variable_with_a_default_can_be_given() {
        let source = "{% set thinks = thinks if thinks is defined else true %}{{ thinks }} of tools";
        let template = ChatTemplate::new(source, None, None, None, 1).unwrap();
        assert!(template.may_read("thinks") && !template.may_read("think"));
        assert!(!template.mentions("tools"));
        let more = json!({"thinks": false}).as_object().unwrap().clone();
        let given = Conversation { more, ..Conversation::default() };
        assert_eq!(template.render_now(&given).as_deref(), Ok("False of tools"));
        assert_eq!(template.render_now(&Conversation::default()).as_deref(), Ok("True of tools"));
    }

    #[test]
    fn arguments_are_texts_for_templates_that_join_them() {
        let call = |arguments| {
            json!([{"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": arguments}},
            ]}])
        };
        let joins = "{% for m in messages %}{% for c in m.tool_calls %}{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}";
        let object = json!({"a": 1, "b": ["ü", null]});
        assert_eq!(render(joins, call(object.clone())).as_deref(), Ok(r#"<{"a": 1, "b": ["ü", null]}>"#));
        assert_eq!(render(joins, call(json!("text"))).as_deref(), Ok("<text>"));
        let writes = joins.replace("'<' + c.function.arguments + '>'", "c.function.arguments | tojson");
        assert_eq!(render(&writes, call(object.clone())).as_deref(), Ok(r#"{"a": 1, "b": ["ü", null]}"#));
        // What the template says of the conversation is not lost.
        let raises = "{{ raise_exception('no calls') }}";
        assert_eq!(render(raises, call(object)), Err(TemplateError::Render("no calls".into())));
    }

    #[test]
    fn reasoning_has_all_of_its_names() {
        let source = "{% for m in messages %}{{ m.reasoning_content }},{{ m.reasoning }},{{ m.thinking }};{% endfor %}";
        for name in ["reasoning_content", "reasoning", "thinking"] {
            let message =
                json!([{"role": "assistant", "content": "a", name: "why"}, {"role": "user", "content": "b"}]);
            assert_eq!(render(source, message).as_deref(), Ok("why,why,why;,,;"), "{name}");
        }
        let both = json!([{"role": "assistant", "reasoning": "r", "thinking": "t"}]);
        assert_eq!(render(source, both).as_deref(), Ok("r,r,t;"));
        let others = json!([{"role": "user", "thinking": "t"}, {"role": "assistant", "thinking": {"x": 1}}]);
        assert_eq!(render(source, others).as_deref(), Ok(",,t;,,{'x': 1};"));
    }

    #[test]
    fn errors_say_what_the_template_says() {
        let raised = render("{{ raise_exception('Roles must alternate') }}", json!([]));
        assert_eq!(raised, Err(TemplateError::Render("Roles must alternate".into())));
        assert!(matches!(render("{% for %}", json!([])), Err(TemplateError::Syntax(_))));
        assert!(matches!(render("{{ strftime_now('%Q!') }}", json!([])), Err(TemplateError::Render(_))));
    }

    #[test]
    fn a_template_that_makes_the_engine_panic_is_an_error() {
        let rendered = render("{{ messages[::-1] }}{% for m in [][::-1] %}{% endfor %}", json!([]));
        assert!(matches!(rendered.as_deref(), Ok("[]") | Err(TemplateError::Render(_))), "{rendered:?}");
    }

    #[test]
    fn a_template_cannot_run_or_grow_without_end() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, json!([])), Err(TemplateError::Render(_))));
        let deep = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
        assert!(matches!(render(deep, json!([])), Err(TemplateError::Render(_))));
        let long = "{% for a in range(9999) %}{{ messages[0].content }}{% endfor %}";
        let message = json!([{"role": "user", "content": "x".repeat(10_000)}]);
        assert!(matches!(render(long, message), Err(TemplateError::Render(_))));
    }
}
