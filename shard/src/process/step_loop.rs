//! The loop over steps: it takes steps in, and answers them in their order.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use millrace_proto::{MasksDue, StepOutput, from_shard, to_shard};

use crate::Error;
use crate::process::adapter_loads::AdapterLoads;
use crate::process::router_link::{MaskArrival, RouterLink};
use crate::process::test_fault::TestFault;
use crate::step_engine::{AwaitedMasks, StepEngine};

/// Time that the loop waits for a message before it checks whether a step is done.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Time that the loop waits for masks if there is nothing else to do.
const MASKS_INTERVAL: Duration = Duration::from_secs(1);

/// Time that the loop waits for a message while an adapter is read and there is nothing to compute.
const ADAPTER_INTERVAL: Duration = Duration::from_millis(1);

/// Answers steps until the router asks the shard to stop. All ranks compute every step. Only rank 0
/// sends the answers. Every rank answers whether it has loaded an adapter.
///
/// The loop submits the next step while the device still computes the one before it, so that the
/// device never waits for the host.
pub(super) fn answer_steps(
    router: &RouterLink,
    rank: usize,
    engine: &mut impl StepEngine,
    adapters: &mut AdapterLoads,
) -> Result<(), Error> {
    // For each submitted step, how long the engine was idle before it.
    let mut idle_times = VecDeque::with_capacity(engine.steps_ahead());
    let mut last_answer = None;
    let mut next = None;
    // The last step whose masks this rank has asked for.
    let mut asked_for = None;
    let fault = TestFault::from_env();
    loop {
        if !idle_times.is_empty() && engine.is_done()? {
            let output = engine.collect()?;
            let idle: Duration = idle_times.pop_front().unwrap_or_default();
            last_answer = Some(Instant::now());
            if rank == 0 {
                let idle_micros = idle.as_micros() as u64;
                router.send(from_shard::Message::Output(StepOutput { idle_micros, ..output }))?;
            }
            continue;
        }
        if let Some(AwaitedMasks { step, is_forward_done }) = engine.awaited_masks()? {
            // The answers to earlier steps are sent first: without them the router cannot know the
            // masks, and would not understand the question.
            let is_oldest = is_forward_done && idle_times.len() == 1;
            let is_due = is_oldest && asked_for != Some(step);
            let timeout = match (is_due, is_oldest) {
                (true, _) => Duration::ZERO,
                (false, true) => MASKS_INTERVAL,
                (false, false) => POLL_INTERVAL,
            };
            match router.masks_within(timeout) {
                MaskArrival::Masks(masks) => engine.add_masks(Some(&masks))?,
                MaskArrival::Never => engine.add_masks(None)?,
                MaskArrival::NotYet if is_due => {
                    asked_for = Some(step);
                    if rank == 0 {
                        router.send(from_shard::Message::MasksDue(MasksDue { step }))?;
                    }
                }
                MaskArrival::NotYet => {}
            }
            continue;
        }
        if idle_times.is_empty()
            && let Some(loaded) = adapters.finish(engine)
        {
            router.send(from_shard::Message::AdapterLoaded(loaded))?;
        }
        match &next {
            Some(_) => thread::sleep(POLL_INTERVAL),
            None if adapters.is_reading() && idle_times.is_empty() => {
                next = router.receive_within(ADAPTER_INTERVAL)?;
            }
            None if idle_times.is_empty() => next = Some(router.receive()?),
            None => next = router.receive_within(POLL_INTERVAL)?,
        }
        let has_capacity = idle_times.len() < engine.steps_ahead();
        match next.take_if(|(message, _)| match message {
            to_shard::Message::Shutdown(_) | to_shard::Message::UnloadAdapter(_) => idle_times.is_empty(),
            // Steps in flight may read the places.
            to_shard::Message::Step(step) if !step.adapters.is_empty() => idle_times.is_empty(),
            _ => has_capacity,
        }) {
            Some((to_shard::Message::Step(step), received)) => {
                let idle_since = last_answer.filter(|_| idle_times.is_empty());
                idle_times
                    .push_back(idle_since.map_or(Duration::ZERO, |since| received.duration_since(since)));
                fault.strike(&step);
                adapters.place(engine, &step.adapters)?;
                engine.submit(&step)?;
            }
            Some((to_shard::Message::LoadAdapter(load), _)) => adapters.start(load)?,
            Some((to_shard::Message::UnloadAdapter(unload), _)) => adapters.unload(engine, &unload)?,
            Some((to_shard::Message::Shutdown(_), _)) => return Ok(()),
            Some((
                to_shard::Message::Ping(_) | to_shard::Message::Rendezvous(_) | to_shard::Message::Masks(_),
                _,
            )) => return Err(Error::OutOfPlace),
            None => {}
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::net::UnixStream;

    use millrace_proto::{
        AdapterPlacement, FromShard, LoadAdapter, Masks, Row, Shutdown, Step, ToShard, UnloadAdapter, frame,
    };

    use millrace_model::AdapterLimits;

    use super::*;
    use crate::step_engine::ReadAdapter;

    /// An engine that computes two steps at a time. The first step is done as soon as the loop has
    /// seen that it is not, and so is the forward pass of the second step.
    #[derive(Default)]
    struct RacingEngine {
        /// The numbers of the steps that are not collected.
        submitted: VecDeque<u64>,
        waiting: Option<u64>,
        is_done: bool,
        /// The adapters that the place has had.
        adapters: Vec<Option<u32>>,
    }

    impl StepEngine for RacingEngine {
        fn steps_ahead(&self) -> usize {
            2
        }

        fn submit(&mut self, step: &Step) -> Result<(), Error> {
            match step.rows.iter().any(|row| row.mask_follows) {
                true => self.waiting = Some(step.id),
                false => self.submitted.push_back(step.id),
            }
            Ok(())
        }

        fn awaited_masks(&mut self) -> Result<Option<AwaitedMasks>, Error> {
            self.is_done |= self.waiting.is_some();
            Ok(self.waiting.map(|step| AwaitedMasks { step, is_forward_done: true }))
        }

        fn add_masks(&mut self, _: Option<&Masks>) -> Result<(), Error> {
            self.submitted.extend(self.waiting.take());
            Ok(())
        }

        fn is_done(&mut self) -> Result<bool, Error> {
            Ok(self.is_done && !self.submitted.is_empty())
        }

        fn collect(&mut self) -> Result<StepOutput, Error> {
            let step = self.submitted.pop_front().ok_or(Error::OutOfPlace)?;
            Ok(StepOutput { step, ..StepOutput::default() })
        }

        fn set_adapter(&mut self, place: usize, adapter: Option<ReadAdapter<'_>>) -> Result<(), Error> {
            assert!(self.submitted.is_empty() && self.waiting.is_none(), "a step is in flight");
            assert_eq!(place, 0);
            self.adapters.push(adapter.map(|adapter| adapter.number));
            Ok(())
        }
    }

    /// The router's end of the connection.
    struct RouterEnd(UnixStream);

    impl RouterEnd {
        /// Returns the ends of the router and of the shard.
        fn pair() -> (RouterEnd, UnixStream) {
            let (router, shard) = UnixStream::pair().expect("a pair of sockets");
            let long = millrace_test_patience::patience(Duration::from_secs(300));
            router.set_read_timeout(Some(long)).expect("a timeout is set");
            (RouterEnd(router), shard)
        }

        fn send(&self, message: to_shard::Message) {
            frame::write(&mut &self.0, &ToShard { message: Some(message) }).expect("the shard reads");
        }

        fn receive(&self) -> from_shard::Message {
            let frame = frame::read::<FromShard>(&mut &self.0, &mut Vec::new()).expect("the shard writes");
            frame.message.expect("a frame has a message")
        }
    }

    #[test]
    fn masks_are_asked_for_after_the_answers_to_earlier_steps() {
        let (router, shard) = RouterEnd::pair();
        let late = Row { mask_follows: true, ..Row::default() };
        router.send(to_shard::Message::Step(Step { id: 1, ..Step::default() }));
        router.send(to_shard::Message::Step(Step { id: 2, rows: vec![late], ..Step::default() }));
        let serving = thread::spawn(move || {
            let link = RouterLink::new(&shard)?;
            let mut adapters =
                AdapterLoads::new(None, &[], AdapterLimits { count: 1, max_loaded: 1, max_rank: 8 });
            answer_steps(&link, 0, &mut RacingEngine::default(), &mut adapters)
        });
        assert!(matches!(router.receive(), from_shard::Message::Output(output) if output.step == 1));
        assert!(matches!(router.receive(), from_shard::Message::MasksDue(due) if due.step == 2));
        router.send(to_shard::Message::Masks(Masks { step: 2, rows: Vec::new() }));
        assert!(matches!(router.receive(), from_shard::Message::Output(output) if output.step == 2));
        router.send(to_shard::Message::Shutdown(Shutdown {}));
        serving.join().unwrap().unwrap();
    }

    /// A place is free again when the adapter in it is unloaded, and an adapter that the shard was
    /// not started with is refused without an effect.
    #[test]
    fn adapters_are_loaded_and_unloaded_between_steps() {
        let (router, shard) = RouterEnd::pair();
        let load = |adapter, listed| {
            router.send(to_shard::Message::LoadAdapter(LoadAdapter {
                adapter,
                listed,
                folder: "x".into(),
                place: Some(0),
            }));
            match router.receive() {
                from_shard::Message::AdapterLoaded(answer) => (answer.adapter, answer.error),
                other => panic!("{other:?}"),
            }
        };
        let serving = thread::spawn(move || {
            let link = RouterLink::new(&shard)?;
            let mut adapters =
                AdapterLoads::new(None, &[], AdapterLimits { count: 1, max_loaded: 1, max_rank: 8 });
            // Its first step is done at once.
            let mut engine = RacingEngine { is_done: true, ..RacingEngine::default() };
            let end = answer_steps(&link, 1, &mut engine, &mut adapters);
            end.map(|()| engine.adapters)
        });
        let (number, error) = load(3, Some(0));
        assert!(number == 3 && error.contains("fewer adapters than the leader"), "{error}");
        assert_eq!(load(4, None), (4, String::new()));
        router.send(to_shard::Message::Step(Step { id: 1, ..Step::default() }));
        router.send(to_shard::Message::UnloadAdapter(UnloadAdapter { adapter: 3 }));
        router.send(to_shard::Message::UnloadAdapter(UnloadAdapter { adapter: 4 }));
        assert_eq!(load(5, None), (5, String::new()));
        router.send(to_shard::Message::Shutdown(Shutdown {}));
        assert_eq!(serving.join().unwrap().unwrap(), [Some(4), None, Some(5)]);
    }

    /// Adapters without a place of their own are copied into places before the steps that use them.
    #[test]
    fn steps_copy_adapters_into_places_when_earlier_steps_have_ended() {
        let (router, shard) = RouterEnd::pair();
        let serving = thread::spawn(move || {
            let link = RouterLink::new(&shard).unwrap();
            let limits = AdapterLimits { count: 1, max_loaded: 2, max_rank: 8 };
            let mut adapters = AdapterLoads::new(None, &[], limits);
            // Its first step is done at once.
            let mut engine = RacingEngine { is_done: true, ..RacingEngine::default() };
            let end = answer_steps(&link, 1, &mut engine, &mut adapters);
            (end, engine.adapters)
        });
        for adapter in [3, 4] {
            let load = LoadAdapter { adapter, listed: None, folder: "x".into(), place: None };
            router.send(to_shard::Message::LoadAdapter(load));
            assert!(
                matches!(router.receive(), from_shard::Message::AdapterLoaded(loaded) if loaded.error.is_empty())
            );
        }
        let step = |id, adapter| Step {
            id,
            adapters: vec![AdapterPlacement { adapter, place: 0 }],
            ..Step::default()
        };
        router.send(to_shard::Message::Step(Step { id: 0, ..Step::default() }));
        router.send(to_shard::Message::Step(step(1, 4)));
        router.send(to_shard::Message::Step(step(2, 3)));
        router.send(to_shard::Message::UnloadAdapter(UnloadAdapter { adapter: 4 }));
        // The copy of an adapter is gone when the adapter is unloaded.
        router.send(to_shard::Message::Step(step(3, 4)));
        let (end, places) = serving.join().unwrap();
        assert!(matches!(end, Err(Error::OutOfPlace)), "{end:?}");
        assert_eq!(places, [Some(4), Some(3)]);
    }
}
