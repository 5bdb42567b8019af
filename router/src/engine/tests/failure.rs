//! Shards that die or send malformed messages. The clock is paused.

use millrace_proto::from_shard::Message;
use millrace_proto::{Fault, FromShard, Loading, Sampled, StepOutput};

use super::fake::{FakeShard, engine_over};
use super::{config, listen, ready, request, soon, until, until_ready};
use crate::engine::{EngineState, SubmitError};

fn fault(message: &str) -> Fault {
    Fault { message: message.into(), lasting: false }
}

/// Starts ten requests. After three correct steps the shard does `what`, and all requests must fail
/// with the text that this function returns.
async fn after_three_steps<F: Future<Output = FakeShard> + Send + 'static>(
    what: impl FnOnce(FakeShard) -> F + Send + 'static,
) -> String {
    let (mut shard, _control, stream) = FakeShard::new(100);
    let shard = tokio::spawn(async move {
        shard.announce().await;
        shard.answer(3).await;
        what(shard).await
    });
    let (engine, task) = engine_over(config(), stream);
    until_ready(&engine).await;
    let held: Vec<_> = (0..10).map(|i| engine.submit(request(i, 30, 50)).unwrap()).collect();
    let mut texts = Vec::new();
    let mut tokens = 0;
    for generation in held {
        let received = listen(generation).await;
        assert_eq!(received.finish, None);
        tokens += received.tokens.len();
        texts.push(received.failed.expect("every request gets an event"));
    }
    assert!(tokens > 0, "the failure happened during the generations");
    soon("the engine's end", task).await.unwrap();
    let EngineState::Failed(reason) = engine.state().borrow().clone() else { panic!("not failed") };
    assert!(texts.iter().all(|text| *text == format!("Engine failed: {reason}")), "{texts:?}");
    assert!(matches!(engine.submit(request(0, 5, 5)), Err(SubmitError::Unavailable(_))));
    assert_eq!(engine.in_flight(), 0);
    drop(soon("the shard's end", shard).await);
    reason
}

async fn answering(output: impl FnOnce(StepOutput) -> StepOutput + Send + 'static) -> String {
    after_three_steps(|mut shard| async move {
        let good = shard.step().await.unwrap();
        shard.send(Message::Output(output(good))).await;
        shard
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn the_death_of_the_shard_fails_every_request() {
    let reason = after_three_steps(|shard| async move {
        drop(shard);
        FakeShard::new(0).0
    })
    .await;
    assert!(reason.starts_with("shard 0 closed its connection") || reason.contains("broke"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn the_text_of_a_fault_is_passed_on() {
    let reason = after_three_steps(|mut shard| async move {
        shard.send(Message::Fault(fault("out of memory; lower --max-batch-total-tokens"))).await;
        shard
    })
    .await;
    assert_eq!(reason, "shard 0: out of memory; lower --max-batch-total-tokens");
}

#[tokio::test(start_paused = true)]
async fn malformed_answers_fail_the_engine_without_a_panic() {
    let stray = Sampled { slot: 0, token: 1, ..Default::default() };
    let reason = answering(|good| StepOutput { step: good.step + 1, ..good }).await;
    assert!(reason.contains("step 4 instead of step 3"), "{reason}");
    let reason = answering(|good| StepOutput { sampled: vec![], ..good }).await;
    assert!(reason.contains("0 tokens for step 3"), "{reason}");
    let reason = answering(move |mut good| {
        good.sampled.push(stray);
        good
    })
    .await;
    assert!(reason.contains("tokens for step 3"), "{reason}");
    let reason = answering(|mut good| {
        good.sampled[0].slot = u32::MAX;
        good
    })
    .await;
    assert!(reason.contains("slot 4294967295"), "{reason}");
    let reason = answering(|mut good| {
        good.sampled[0].token = 1000;
        good
    })
    .await;
    assert!(reason.contains("outside the vocabulary of 1000"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn unexpected_messages_fail_the_engine() {
    for message in [Some(Message::Ready(ready())), Some(Message::Loading(Loading::default())), None] {
        let reason = after_three_steps(|mut shard| async move {
            shard.send_bytes(&millrace_proto::frame::encode(&FromShard { message }).unwrap()).await;
            shard
        })
        .await;
        assert!(reason.contains("no place while serving"), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn garbled_bytes_fail_the_engine() {
    for (bytes, text) in
        [([5u8, 0, 0, 0, 255, 255, 255, 255, 255], "malformed message"), ([255; 9], "over the limit")]
    {
        let reason = after_three_steps(move |mut shard| async move {
            shard.send_bytes(&bytes).await;
            shard
        })
        .await;
        assert!(reason.contains(text), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn progress_is_shown_and_a_fault_while_loading_fails() {
    let (mut shard, _control, stream) = FakeShard::new(0);
    let (engine, task) = engine_over(config(), stream);
    assert!(matches!(engine.submit(request(0, 5, 5)), Err(SubmitError::Unavailable(_))));
    let progress = Loading { phase: "Reading weights".into(), done_bytes: 3, total_bytes: 7 };
    shard.send(Message::Loading(progress)).await;
    let shown = EngineState::Loading { phase: "Reading weights".into(), done: 3, total: 7 };
    until(&engine, "progress", |state| *state == shown).await;
    shard.send(Message::Fault(fault("model.safetensors is truncated"))).await;
    let failed = EngineState::Failed("shard 0: model.safetensors is truncated".into());
    until(&engine, "failure", |state| *state == failed).await;
    soon("the engine's end", task).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_announced_limit_of_zero_fails() {
    let (mut shard, _control, stream) = FakeShard::new(0);
    let (engine, _task) = engine_over(config(), stream);
    shard.send(Message::Ready(millrace_proto::Ready { num_blocks: 0, ..ready() })).await;
    let state = until(&engine, "failure", |state| matches!(state, EngineState::Failed(_))).await;
    assert!(matches!(&state, EngineState::Failed(reason) if reason.contains("num_blocks = 0")), "{state:?}");
}
