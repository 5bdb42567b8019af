//! Compiling and rendering of chat templates.
//!
//! A template comes with the model and processes data from clients. Therefore it runs in a sandbox
//! without files and imports, and with bounds on instructions, depth, output and time. Special
//! tokens that a client wrote are hidden from the template and distinguished from the template's
//! own tokens (see [`ControlTokenGuard`]).

use std::collections::HashSet;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context};
use tokio::sync::Semaphore;

use super::roles::RoleSupport;
use super::{messages, python, source_limits};
use crate::control_tokens::ControlTokenGuard;
use crate::conversation::Conversation;
use crate::conversation::RenderedPrompt;
use crate::error::TemplateError;

/// The number of template instructions that one rendering may execute. The longest published
/// templates need some thousands per message.
const MAX_INSTRUCTIONS: u64 = 20_000_000;
/// The depth of nested macro and block calls.
const MAX_CALL_DEPTH: usize = 100;
/// The number of bytes that a template may write.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// The time after which the client receives an error. The instruction limit ends the rendering
/// itself.
const RENDER_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of special tokens in the assistant's messages that are tested with an additional
/// rendering each (see [`ChatTemplate::render_guarded_now`]).
const MAX_REVEALED_TOKENS: usize = 4;

/// The names of a model's templates.
const CHAT: &str = "chat";
const CHAT_WITH_TOOLS: &str = "chat with tools";

/// A compiled chat template. Clones share the same data.
#[derive(Debug, Clone)]
pub struct ChatTemplate(Arc<TemplateData>);

#[derive(Debug)]
struct TemplateData {
    environment: Environment<'static>,
    /// The variables that the template or its variant for tools reads.
    variables: HashSet<String>,
    writes_calls: bool,
    /// Every word of the source that could be the name of a variable.
    variable_names: HashSet<String>,
    /// Words in quotes in the source, among them the roles that the template knows.
    quoted_words: HashSet<String>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    roles: RoleSupport,
    workers: Semaphore,
}

impl ChatTemplate {
    /// Compiles a template and an optional variant for conversations with tools. At most `workers`
    /// conversations are rendered at the same time.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] names the line.
    pub fn new(
        source: &str,
        with_tools: Option<&str>,
        bos_token: Option<String>,
        eos_token: Option<String>,
        workers: usize,
    ) -> Result<Self, TemplateError> {
        [Some(source), with_tools].into_iter().flatten().try_for_each(source_limits::check)?;
        let (environment, variables) = source_limits::on_large_stack(|| compile(source, with_tools))?;
        let texts = || [Some(source), with_tools].into_iter().flatten();
        let workers = Semaphore::new(workers.max(1));
        Ok(ChatTemplate(Arc::new(TemplateData {
            environment,
            variables,
            writes_calls: texts().any(|text| text.contains("tool_calls")),
            variable_names: texts().flat_map(variable_names).map(str::to_owned).collect(),
            quoted_words: texts().flat_map(quoted_words).collect(),
            bos_token,
            eos_token,
            roles: RoleSupport::default(),
            workers,
        })))
    }

    /// Whether the template reads this variable.
    pub fn mentions(&self, variable: &str) -> bool {
        self.0.variables.contains(variable)
    }

    /// Whether the template could read this variable under some condition. In contrast to
    /// [`mentions`](Self::mentions), this includes variables to which the template assigns a
    /// default.
    pub fn may_read(&self, variable: &str) -> bool {
        self.0.variable_names.contains(variable)
    }

    /// Whether the template writes the tool calls of earlier messages, which is detected by the
    /// name of their field.
    pub fn writes_calls(&self) -> bool {
        self.0.writes_calls
    }

    /// Whether the source contains this word in quotes. Templates quote the names of the roles that
    /// they treat in a special way.
    pub fn quotes(&self, word: &str) -> bool {
        self.0.quoted_words.contains(word)
    }

    /// Renders a conversation on a blocking thread. `guard` has hidden the special tokens in the
    /// conversation.
    ///
    /// # Errors
    /// [`TemplateError::Render`] with the template's own error text if there is one.
    pub async fn render(
        &self,
        conversation: Conversation,
        guard: ControlTokenGuard,
    ) -> Result<RenderedPrompt, TemplateError> {
        let stopped = || TemplateError::Render("worker has stopped".into());
        let template = self.clone();
        let work = async move {
            let task = tokio::task::spawn_blocking({
                let permit = template.0.clone();
                // The work itself holds the permit. A template that still runs after its client
                // received an error counts as running.
                let held = permit.workers.acquire().await.map_err(|_| stopped())?;
                held.forget();
                move || {
                    let _release = PermitGuard(&permit.workers);
                    template.0.roles.check(&conversation, &|probe| template.render_now(probe))?;
                    template.render_guarded_now(conversation, &guard)
                }
            });
            task.await.unwrap_or_else(|_| Err(stopped()))
        };
        tokio::time::timeout(RENDER_TIMEOUT, work).await.unwrap_or_else(|_| {
            Err(TemplateError::Render(format!("took longer than {} s", RENDER_TIMEOUT.as_secs())))
        })
    }

    /// Renders a conversation on the current thread. `guard` has hidden the special tokens in the
    /// conversation.
    ///
    /// A template may search for a special token in an earlier message of the assistant, for
    /// instance to leave out its reasoning. To find such tokens, the conversation is rendered with
    /// and without each of them. Tokens that change the result are shown to the template. All
    /// others stay hidden.
    ///
    /// # Errors
    /// The same as [`ChatTemplate::render_now`].
    pub fn render_guarded_now(
        &self,
        mut conversation: Conversation,
        guard: &ControlTokenGuard,
    ) -> Result<RenderedPrompt, TemplateError> {
        let written = |conversation: &Conversation| match self.render_now(conversation) {
            Ok(text) => Ok(guard.reveal(&text)),
            Err(TemplateError::Render(reason)) => Err(TemplateError::Render(guard.reveal(&reason).text)),
            Err(other) => Err(other),
        };
        let hidden = written(&conversation);
        let mut shown = Vec::new();
        for token in guard.assistant_tokens().take(MAX_REVEALED_TOKENS) {
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

    /// Renders a conversation on the current thread. If the template fails with objects as the
    /// arguments of tool calls, it is rendered again with the arguments as JSON text.
    ///
    /// # Errors
    /// [`TemplateError::Render`] with the template's own error text if there is one.
    pub fn render_now(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let conversation = messages::with_reasoning(conversation);
        let rendered = self.render_once(&conversation);
        if !matches!(rendered, Err(TemplateError::Render(_))) {
            return rendered;
        }
        match messages::with_written_arguments(&conversation) {
            // The first error describes what is wrong with the conversation itself.
            Some(written) => self.render_once(&written).or(rendered),
            None => rendered,
        }
    }

    fn render_once(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let render = |error: Error| TemplateError::Render(error_text(&error));
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
        let mut output = BoundedOutput(Vec::new());
        // minijinja panics for some template mistakes, such as a backward slice of an empty list.
        let rendered = catch_unwind(AssertUnwindSafe(|| template.render_captured_to(variables, &mut output)));
        rendered.map_err(|_| TemplateError::Render("the chat template failed".into()))?.map_err(render)?;
        String::from_utf8(output.0).map_err(|e| TemplateError::Render(e.to_string()))
    }
}

/// Creates the environment that renders a template and its variant for tools. Returns it with the
/// variables that the templates read.
fn compile(
    source: &str,
    with_tools: Option<&str>,
) -> Result<(Environment<'static>, HashSet<String>), TemplateError> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_recursion_limit(MAX_CALL_DEPTH);
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

/// Returns the words of the source that could be names of variables.
fn variable_names(source: &str) -> impl Iterator<Item = &str> {
    let quoted_words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    quoted_words
        .filter(|word| word.len() <= 64 && word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
}

/// Returns the words of at most 64 letters, digits, dashes and underscores that stand in quotes.
fn quoted_words(source: &str) -> impl Iterator<Item = String> {
    source.char_indices().filter(|&(_, c)| matches!(c, '\'' | '"')).filter_map(|(at, quote)| {
        let rest = &source[at + 1..];
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let end = rest.char_indices().take(65).find(|&(_, c)| !is_word(c))?;
        (end.0 > 0 && end.1 == quote).then(|| rest[..end.0].to_owned())
    })
}

struct PermitGuard<'a>(&'a Semaphore);

impl Drop for PermitGuard<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

struct BoundedOutput(Vec<u8>);

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other("more than 16 MiB of text"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn error_text(error: &Error) -> String {
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        // `raise_exception` texts are meant for the client as they are.
        Some(line) if error.kind() != ErrorKind::InvalidOperation => format!("{text} (line {line})"),
        _ => text,
    }
}

/// Replaces `generation` blocks, which mark the assistant's words for training, by blocks that only
/// write their content.
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
    use serde_json::json;

    use super::*;

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
    fn usual_template_features_work() {
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
    fn templates_receive_tools_and_other_variables() {
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
    fn a_variable_with_a_default_can_be_set() {
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
    fn arguments_are_strings_for_templates_that_concatenate_them() {
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
        // The first error text, which comes from the template, is returned.
        let raises = "{{ raise_exception('no calls') }}";
        assert_eq!(render(raises, call(object)), Err(TemplateError::Render("no calls".into())));
    }

    #[test]
    fn reasoning_has_all_of_its_field_names() {
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
    fn errors_have_the_templates_text() {
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
    fn rendering_is_bounded_in_time_and_size() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, json!([])), Err(TemplateError::Render(_))));
        let deep = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
        assert!(matches!(render(deep, json!([])), Err(TemplateError::Render(_))));
        let long = "{% for a in range(9999) %}{{ messages[0].content }}{% endfor %}";
        let message = json!([{"role": "user", "content": "x".repeat(10_000)}]);
        assert!(matches!(render(long, message), Err(TemplateError::Render(_))));
    }
}
