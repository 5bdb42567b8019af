//! Tests of the work that comes before the first shards. The clock is paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::fake::FakeShard;
use super::{config, soon, until, until_ready};
use crate::engine::group::ShardGroup;
use crate::engine::{Engine, EngineState, Preparation, start_prepared};

/// Ends the preparation.
type PreparationEnd = oneshot::Sender<Result<(), String>>;

/// An engine whose preparation ends with what the sender sends. Each start of shards is counted.
fn prepared() -> (Engine, JoinHandle<()>, PreparationEnd, Arc<AtomicU64>) {
    let (sender, receiver) = oneshot::channel();
    let preparation = Preparation {
        phase: "Preparing".into(),
        progress: Box::new(|| (3, 7)),
        work: Box::pin(async { receiver.await.unwrap_or_else(|_| Err("the sender is gone".into())) }),
    };
    let starts = Arc::new(AtomicU64::new(0));
    let counted = starts.clone();
    let connect = move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let (shard, _control, stream) = FakeShard::new(0);
        tokio::spawn(shard.serve());
        std::future::ready(Ok(ShardGroup::connected(vec![stream]))).boxed()
    };
    let (engine, task) = start_prepared(Some(preparation), config(), vec![Box::new(connect)]);
    (engine, task, sender, starts)
}

fn is_preparing(state: &EngineState) -> bool {
    *state == EngineState::Loading { phase: "Preparing".into(), done: 3, total: 7 }
}

#[tokio::test(start_paused = true)]
async fn shards_start_after_the_preparation() {
    let (engine, task, sender, starts) = prepared();
    until(&engine, "the preparation is shown", is_preparing).await;
    assert_eq!(starts.load(Ordering::SeqCst), 0);
    sender.send(Ok(())).unwrap();
    until_ready(&engine).await;
    assert_eq!(starts.load(Ordering::SeqCst), 1);
    engine.drain();
    soon("the engine's end", task).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_preparation_is_the_reason_of_the_engine() {
    let (engine, task, sender, starts) = prepared();
    sender.send(Err("no such file".into())).unwrap();
    let failed = until(&engine, "the failure", |state| matches!(state, EngineState::Failed(_))).await;
    assert_eq!(failed, EngineState::Failed("no such file".into()));
    soon("the engine's end", task).await.unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_drain_cancels_the_preparation() {
    let (engine, task, mut sender, starts) = prepared();
    until(&engine, "the preparation is shown", is_preparing).await;
    engine.drain();
    soon("the engine's end", task).await.unwrap();
    soon("the work is dropped", sender.closed()).await;
    assert_eq!(starts.load(Ordering::SeqCst), 0);
}
