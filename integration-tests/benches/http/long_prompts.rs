//! The client that sends a long prompt every two seconds.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;
use tokio::time::interval;

use crate::streams::{StreamRequest, read_stream};

/// The time between two prompts.
const PERIOD: Duration = Duration::from_secs(2);

/// The maximum number of prompts without a first token. A prompt that would exceed it is left out.
const MAX_OUTSTANDING: usize = 2;

/// The number of tokens that follow each prompt.
const NEW_TOKENS: usize = 4;

/// A text of about 4,000 tokens of the demo model's tokenizer, which both models have.
const PROMPT_CHARS: usize = 12_570;

/// The times to the first token of the long prompts of a run.
#[derive(Debug, Default, Clone)]
pub(crate) struct PromptTimes {
    /// The times of the prompts that have a first token.
    pub(crate) firsts: Vec<Duration>,
    /// The ages of the prompts that had no first token at the end.
    pub(crate) unanswered: Vec<Duration>,
}

impl PromptTimes {
    /// Adds the times of another run.
    pub(crate) fn merge(&mut self, other: PromptTimes) {
        self.firsts.extend(other.firsts);
        self.unanswered.extend(other.unanswered);
    }
}

/// Returns a long prompt. Prompts with different names have no common prefix.
pub(crate) fn prompt(name: &str) -> String {
    let text = format!("{name}: {}", "the lantern and the fox went over the hill, ".repeat(300));
    text.chars().take(PROMPT_CHARS).collect()
}

/// Sends long prompts until `until` and returns their times. Streams that run then are dropped with
/// `tasks`.
pub(crate) async fn send(tasks: &LocalSet, address: &str, run: &str, until: Instant) -> PromptTimes {
    let times = Rc::new(RefCell::new(PromptTimes::default()));
    let outstanding = Rc::new(RefCell::new(Vec::<Instant>::new()));
    let mut ticks = interval(PERIOD);
    let mut number = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = tokio::time::sleep_until(until.into()) => break,
        }
        if outstanding.borrow().len() >= MAX_OUTSTANDING {
            continue;
        }
        number += 1;
        let prompt = prompt(&format!("{run} {number}"));
        let request = StreamRequest { address: address.to_owned(), prompt, tokens: NEW_TOKENS };
        let (times, outstanding) = (times.clone(), outstanding.clone());
        tasks.spawn_local(async move {
            let sent = Instant::now();
            outstanding.borrow_mut().push(sent);
            let mut is_first = true;
            read_stream(&request, |arrival| {
                if std::mem::take(&mut is_first) {
                    times.borrow_mut().firsts.push(arrival.at - sent);
                    outstanding.borrow_mut().retain(|other| *other != sent);
                }
            })
            .await;
        });
    }
    let now = Instant::now();
    let mut times = times.borrow().clone();
    times.unanswered = outstanding.borrow().iter().map(|sent| now - *sent).collect();
    times
}
