//! `millrace chat`: a conversation in the terminal.
//!
//! | file | its job |
//! |---|---|
//! | `command` | the commands that can be typed |
//! | `lines` | where messages come from: a terminal with history, or a pipe |

mod command;
mod lines;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use millrace_router::service::{FinishReason, Params, Prompt, TextStream};
use millrace_router::text::Conversation;
use serde_json::{Value, json};

use self::command::Input;
use self::lines::Lines;
use crate::cli::ChatArgs;
use crate::stack::{Serving, Stack};
use crate::{devices, logging};

/// Reads messages and streams the answers.
pub(crate) fn run(args: ChatArgs) -> Result<()> {
    logging::start("off", false);
    let ChatArgs { model, mut engine, sampling, system } = args;
    devices::settle(&mut engine, &model, 1)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let stack = Stack::start(&model, &engine, Default::default(), Serving::default(), None)?;
        if !stack.service.has_template() {
            let id = &model.model_id;
            bail!(
                "{id} has no chat template; `millrace generate` continues plain text with this model, and \
                 --tokenizer-config-path takes a template from another file"
            );
        }
        stack.loaded().await?;
        let mut lines = Lines::from_stdin()?;
        if lines.is_terminal() {
            println!("Talking to {}. /help lists what else can be typed.", model.model_id);
        }
        let mut chat =
            Chat { stack, params: sampling.params(), system, messages: Vec::new(), shows_speed: false };
        chat.reset();
        while let Some(line) = lines.next()? {
            if !chat.take(Input::read(&line)).await? {
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
    /// Instructions that the conversation begins with.
    system: Option<String>,
    /// What was said so far, in the form of OpenAI's `messages`.
    messages: Vec<Value>,
    /// Whether the speed of each answer is shown.
    shows_speed: bool,
}

impl Chat {
    /// Forgets all but the instructions.
    fn reset(&mut self) {
        self.messages = self.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
    }

    /// Does what was typed; says whether the conversation goes on.
    async fn take(&mut self, input: Input<'_>) -> Result<bool> {
        match input {
            Input::Nothing => {}
            Input::Exit => return Ok(false),
            Input::Help => println!("{}", command::help()),
            Input::Unknown(what) => println!("{what}\n{}", command::help()),
            Input::Reset => self.reset(),
            Input::System(Some(text)) => {
                self.system = Some(text.to_owned());
                self.reset();
            }
            Input::System(None) => {
                println!("{}", self.system.as_deref().unwrap_or("there are no instructions"))
            }
            Input::Speed => {
                self.shows_speed = !self.shows_speed;
                println!(
                    "the speed is {}",
                    if self.shows_speed { "shown after each answer" } else { "not shown" }
                );
            }
            Input::Save(file) => match self.save(file) {
                Ok(()) => println!("saved {} messages to {file}", self.messages.len()),
                Err(error) => println!("{error:#}"),
            },
            Input::Message(text) => self.answer(text).await?,
        }
        Ok(true)
    }

    /// Writes the conversation to a new file.
    fn save(&self, file: &str) -> Result<()> {
        let text = serde_json::to_string_pretty(&json!({"messages": self.messages}))?;
        let written = std::fs::File::create_new(file).and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {file}"))
    }

    /// Streams the answer to a message. Both are part of the conversation from then on.
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
            // A conversation that has become too long is no reason to leave.
            Err(error) => {
                println!("{error}\n/reset begins anew");
                self.messages.pop();
            }
        }
        Ok(())
    }
}

/// An answer that has been printed.
struct Printed {
    text: String,
    tokens: u32,
    /// Why it is not complete, if it is not.
    cut: Option<&'static str>,
    /// From the message to the first token.
    first: Duration,
    /// From the first token to the last.
    rest: Duration,
}

impl Printed {
    /// Ends the line, and says what is to be said of the answer.
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

/// Prints an answer as it comes, until it ends or Ctrl-C is typed. Its message was typed at `begun`.
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
