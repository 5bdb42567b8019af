//! `millrace chat`: a conversation in the terminal.
//!
//! | file | contents |
//! |---|---|
//! | `command` | the commands of the chat |
//! | `lines` | the input: a terminal with history, or a pipe |

mod command;
mod lines;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use millrace_router::service::{FinishReason, Params, Prompt, TextStream};
use millrace_text::Conversation;
use serde_json::{Value, json};

use self::command::ChatInput;
use self::lines::Lines;
use crate::adapters::ServedAdapters;
use crate::cli::ChatArgs;
use crate::model::fetch_completely;
use crate::stack::{ServingOptions, Stack};
use crate::{devices, draft_model, logging};

/// Reads messages and prints the answers as they stream.
pub(crate) fn run(args: ChatArgs) -> Result<()> {
    logging::start("off", false);
    let ChatArgs { mut model, mut engine, adapter, sampling, system, named_model: _ } = args;
    let adapters = ServedAdapters::find_one(&adapter, &model, engine.device)?;
    fetch_completely(&mut model, false)?;
    devices::settle(&mut engine, &model, 1)?;
    draft_model::settle(&mut engine, &model, false)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let stack = Stack::start(&model, &engine, ServingOptions { adapters, ..ServingOptions::default() })?;
        if !stack.service.has_template() {
            let id = &stack.service.model().id;
            bail!(
                "{id} has no chat template; `millrace generate` continues plain text with this model, and \
                 --tokenizer-config-path takes a template from another file"
            );
        }
        stack.loaded().await?;
        let mut lines = Lines::from_stdin()?;
        if lines.is_terminal() {
            println!("Talking to {}. /help lists the commands.", stack.service.model().id);
        }
        let params = stack.params(&sampling);
        let mut chat = Chat { stack, params, system, messages: Vec::new(), shows_speed: false };
        chat.reset();
        while let Some(line) = lines.next()? {
            if !chat.take(ChatInput::read(&line)).await? {
                break;
            }
        }
        chat.stack.stop().await;
        Ok(())
    })
}

/// A conversation.
struct Chat {
    stack: Stack,
    params: Params,
    /// Instructions at the start of the conversation.
    system: Option<String>,
    /// The conversation so far, in the form of OpenAI's `messages`.
    messages: Vec<Value>,
    /// Whether the speed of each answer is shown.
    shows_speed: bool,
}

impl Chat {
    /// Forgets everything except the instructions.
    fn reset(&mut self) {
        self.messages = self.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
    }

    /// Executes a line. Returns whether the conversation continues.
    async fn take(&mut self, input: ChatInput<'_>) -> Result<bool> {
        match input {
            ChatInput::Nothing => {}
            ChatInput::Exit => return Ok(false),
            ChatInput::Help => println!("{}", command::help()),
            ChatInput::Unknown(what) => println!("{what}\n{}", command::help()),
            ChatInput::Reset => self.reset(),
            ChatInput::System(Some(text)) => {
                self.system = Some(text.to_owned());
                self.reset();
            }
            ChatInput::System(None) => {
                println!("{}", self.system.as_deref().unwrap_or("there are no instructions"))
            }
            ChatInput::Speed => {
                self.shows_speed = !self.shows_speed;
                println!(
                    "the speed is {}",
                    if self.shows_speed { "shown after each answer" } else { "not shown" }
                );
            }
            ChatInput::Save(file) => match self.save(file) {
                Ok(()) => println!("saved {} messages to {file}", self.messages.len()),
                Err(error) => println!("{error:#}"),
            },
            ChatInput::Message(text) => self.answer(text).await?,
        }
        Ok(true)
    }

    /// Writes the conversation to a new file.
    fn save(&self, file: &str) -> Result<()> {
        let text = serde_json::to_string_pretty(&json!({"messages": self.messages}))?;
        let written = std::fs::File::create_new(file).and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {file}"))
    }

    /// Prints the answer to a message and adds both to the conversation.
    async fn answer(&mut self, text: &str) -> Result<()> {
        let typed = Instant::now();
        self.messages.push(json!({"role": "user", "content": text}));
        let conversation = Conversation {
            messages: self.messages.clone(),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        let service = &self.stack.service;
        let begun = match service.render(conversation).await {
            Ok(prompt) => service.generate(Prompt::Chat(prompt), self.params.clone()).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(mut answer) => {
                let printed = print_answer(&mut answer, typed).await?;
                printed.report(self.shows_speed);
                self.messages.push(json!({"role": "assistant", "content": printed.text}));
            }
            // The chat continues even if the conversation has become too long.
            Err(error) => {
                println!("{error}\n/reset starts again");
                self.messages.pop();
            }
        }
        Ok(())
    }
}

/// Statistics of an answer that has been printed.
struct Printed {
    text: String,
    tokens: u32,
    /// Reason why the answer is incomplete, if it is.
    cut: Option<&'static str>,
    /// Time from the message to the first token.
    first: Duration,
    /// Time from the first token to the last.
    rest: Duration,
}

impl Printed {
    /// Ends the line and prints the statistics.
    fn report(&self, shows_speed: bool) {
        println!();
        if let Some(why) = self.cut {
            println!("[{why}]");
        }
        if shows_speed {
            let rate = f64::from(self.tokens.saturating_sub(1)) / self.rest.as_secs_f64().max(1e-9);
            let (tokens, first) = (self.tokens, self.first.as_secs_f64());
            println!("[{tokens} tokens, {rate:.1} tokens/s, the first after {first:.2} s]");
        }
    }
}

/// Prints an answer as its tokens arrive, until it ends or Ctrl-C is pressed. `begun` is the time
/// of the message.
async fn print_answer(answer: &mut TextStream, begun: Instant) -> Result<Printed> {
    let (mut first, mut last) = (None, begun);
    let mut printed =
        Printed { text: String::new(), tokens: 0, cut: None, first: Duration::ZERO, rest: Duration::ZERO };
    let mut out = std::io::stdout();
    loop {
        let event = tokio::select! {
            event = answer.next() => event,
            Ok(()) = tokio::signal::ctrl_c() => {
                printed.cut = Some("ended by Ctrl-C");
                break;
            }
        };
        let Some(event) = event else { break };
        let event = event?;
        last = Instant::now();
        first.get_or_insert(last);
        out.write_all(event.text.as_bytes())?;
        out.flush()?;
        printed.tokens += 1;
        printed.text += &event.text;
        if event.finished.is_some_and(|finished| finished.reason == FinishReason::Length) {
            printed.cut = Some("cut off; --max-new-tokens allows longer answers");
        }
    }
    let first = first.unwrap_or(last);
    printed.first = first - begun;
    printed.rest = last - first;
    Ok(printed)
}
