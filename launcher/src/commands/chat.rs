//! `millrace chat`: a conversation in the terminal.

use std::io::{IsTerminal, Write};

use anyhow::{Result, bail};
use millrace_router::service::{Prompt, ServiceError};
use millrace_router::text::Conversation;
use serde_json::{Value, json};

use super::generate::print_stream;
use crate::cli::ChatArgs;
use crate::stack::{Serving, Stack};
use crate::{devices, logging};

const HELP: &str = "\
/reset   forget the conversation
/exit    leave (or end the input, Ctrl-D)
/help    this list";

/// Reads messages line by line and streams the answers.
pub(crate) fn run(args: ChatArgs) -> Result<()> {
    logging::start("off", false);
    let ChatArgs { model, mut engine, sampling, system } = args;
    devices::settle(&mut engine, &model, 1)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let stack = Stack::start(&model, &engine, Default::default(), Serving::default(), None)?;
        stack.loaded().await?;
        let interactive = std::io::stdin().is_terminal();
        if interactive {
            println!("Talking to {}. /help lists what else can be typed.", model.model_id);
        }
        let opening: Vec<Value> =
            system.iter().map(|text| json!({"role": "system", "content": text})).collect();
        let mut messages = opening.clone();
        while let Some(line) = read_line(interactive)? {
            match line.trim() {
                "" => continue,
                "/exit" | "/quit" => break,
                "/reset" => messages.clone_from(&opening),
                "/help" => println!("{HELP}"),
                text => {
                    messages.push(json!({"role": "user", "content": text}));
                    let conversation = Conversation {
                        messages: messages.clone(),
                        add_generation_prompt: true,
                        ..Conversation::default()
                    };
                    let prompt = match stack.service.render(conversation).await {
                        Ok(prompt) => prompt,
                        Err(error @ ServiceError::Template(_)) if messages.len() == 1 => {
                            bail!("{error}; `millrace generate` continues plain text with this model")
                        }
                        Err(error) => return Err(error.into()),
                    };
                    let answer = match stack.service.generate(Prompt::Chat(prompt), sampling.params()).await {
                        Ok(mut answer) => print_stream(&mut answer).await?,
                        // A conversation that has become too long is no reason to leave.
                        Err(error) => {
                            println!("{error}\n/reset begins anew");
                            messages.pop();
                            continue;
                        }
                    };
                    println!();
                    messages.push(json!({"role": "assistant", "content": answer}));
                }
            }
        }
        stack.stop().await;
        Ok(())
    })
}

/// The next line; nothing at the end of the input.
fn read_line(interactive: bool) -> Result<Option<String>> {
    if interactive {
        print!("> ");
        std::io::stdout().flush()?;
    }
    let mut line = String::new();
    Ok((std::io::stdin().read_line(&mut line)? > 0).then_some(line))
}
