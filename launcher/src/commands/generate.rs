//! `millrace generate`: continues a prompt and exits.

use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use millrace_router::service::{Params, Prompt, TextStream};
use millrace_text::SpecialTokens;

use crate::adapters::ServedAdapters;
use crate::cli::{GenerateArgs, SamplingArgs};
use crate::model::fetch_completely;
use crate::stack::{ServingOptions, Stack};
use crate::{devices, draft_model, logging};

/// Prints the prompt and its continuation.
pub(crate) fn run(args: GenerateArgs) -> Result<()> {
    logging::start("off", false);
    let GenerateArgs { mut texts, mut model, mut engine, adapter, sampling } = args;
    let prompt = match texts.pop() {
        Some(prompt) => {
            let is_path = Path::new(&prompt).exists();
            ensure!(
                !is_path,
                "{prompt} is a path: give a prompt behind it, or the model as --model-id {prompt}"
            );
            prompt
        }
        None => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("cannot read the prompt from standard input")?;
            text
        }
    };
    let adapters = ServedAdapters::find_one(&adapter, &model, engine.device)?;
    fetch_completely(&mut model, false)?;
    devices::settle(&mut engine, &model, 1)?;
    draft_model::settle(&mut engine, &model, false)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let stack = Stack::start(&model, &engine, ServingOptions { adapters, ..ServingOptions::default() })?;
        stack.loaded().await?;
        let params = stack.params(&sampling);
        let mut answer =
            stack.service.generate(Prompt::Text(prompt.clone(), SpecialTokens::Add), params).await?;
        print!("{prompt}");
        print_stream(&mut answer).await?;
        println!();
        drop(answer);
        stack.stop().await;
        Ok(())
    })
}

/// Prints an answer as its tokens arrive.
async fn print_stream(answer: &mut TextStream) -> Result<()> {
    let mut out = std::io::stdout();
    while let Some(event) = answer.next().await {
        let text = event?.text;
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

impl Stack {
    /// Returns the parameters of a request with the adapter that the stack was started with, if it
    /// was started with one.
    pub(super) fn params(&self, sampling: &SamplingArgs) -> Params {
        let adapters = self.service.model().adapters.named();
        Params { adapter: adapters.first().map(|adapter| adapter.id), ..sampling.params() }
    }
}

impl SamplingArgs {
    /// Converts the flags to sampling parameters.
    fn params(&self) -> Params {
        Params {
            max_new_tokens: Some(self.max_new_tokens),
            // Greedy decoding uses no temperature.
            temperature: (self.temperature > 0.0).then_some(self.temperature),
            do_sample: self.temperature > 0.0,
            top_k: self.top_k.map(i64::from),
            top_p: self.top_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            stop: self.stop.clone(),
            ..Params::default()
        }
    }
}
