//! The loop over steps: take them in, answer them in their order.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use millrace_proto::{Step, StepOutput, from_shard, to_shard};

use crate::Error;
use crate::connection::Router;
use crate::fault::TestFault;

/// How long the loop waits for a message before it looks whether a step is done.
const POLL: Duration = Duration::from_micros(20);

/// What computes steps, in the order in which they are submitted.
pub(crate) trait Engine {
    /// How many steps may be submitted and not collected.
    fn steps_ahead(&self) -> usize;

    /// Starts a step.
    ///
    /// # Errors
    /// If the step is malformed or the device fails; the engine is then of no further use.
    fn submit(&mut self, step: &Step) -> Result<(), Error>;

    /// Whether the oldest step that was submitted and not collected is done.
    ///
    /// # Errors
    /// If the device has failed.
    fn is_done(&mut self) -> Result<bool, Error>;

    /// Waits for that step and answers it, but for the time that there was nothing to do.
    ///
    /// # Errors
    /// If the device has failed.
    fn collect(&mut self) -> Result<StepOutput, Error>;
}

/// Answers steps until the router asks to stop. All ranks compute the same; rank 0 speaks for them.
///
/// While a device computes, the next step is given to it as soon as it comes, so that the device finds it when it is done.
pub(crate) fn answer(router: &Router, rank: usize, engine: &mut impl Engine) -> Result<(), Error> {
    // For each step under way the time that there was nothing to do before it.
    let mut under_way = VecDeque::with_capacity(engine.steps_ahead());
    let mut answered = None;
    let mut next = None;
    let fault = TestFault::from_env();
    loop {
        if !under_way.is_empty() && engine.is_done()? {
            let output = engine.collect()?;
            let idle: Duration = under_way.pop_front().unwrap_or_default();
            answered = Some(Instant::now());
            if rank == 0 {
                let idle_micros = idle.as_micros() as u64;
                router.send(from_shard::Message::Output(StepOutput { idle_micros, ..output }))?;
            }
            continue;
        }
        match &next {
            Some(_) => thread::sleep(POLL),
            None if under_way.is_empty() => next = Some(router.receive()?),
            None => next = router.receive_within(POLL)?,
        }
        let room = engine.steps_ahead() - under_way.len();
        match next.take_if(|(message, _)| match message {
            to_shard::Message::Shutdown(_) => under_way.is_empty(),
            _ => room > 0,
        }) {
            Some((to_shard::Message::Step(step), received)) => {
                let idle = answered.filter(|_| under_way.is_empty());
                under_way.push_back(idle.map_or(Duration::ZERO, |since| received.duration_since(since)));
                fault.strike(&step);
                engine.submit(&step)?;
            }
            Some((to_shard::Message::Shutdown(_), _)) => return Ok(()),
            Some((to_shard::Message::Ping(_) | to_shard::Message::Rendezvous(_), _)) => {
                return Err(Error::OutOfPlace);
            }
            None => {}
        }
    }
}
