//! Adapters that are loaded and unloaded while the engine runs, with fake shards.

use super::fake::{Control, FakeShard, engine_over_all};
use super::{config, listen, received_alone, request, soon, until_ready};
use crate::engine::{AdapterId, AdapterInfo, Adapters, EngineConfig, LoadError, Request};

const OPEN: usize = 1 << 20;

fn info(name: &str) -> AdapterInfo {
    AdapterInfo { name: name.into(), root: name.into(), parent: None }
}

/// A request with the adapter that has this name now.
fn with(adapters: &Adapters, name: &str, seed: u64) -> Request {
    Request { adapter: Some(adapters.get(name).unwrap().id), ..request(seed, 20, 30) }
}

/// The engine, with the adapter `a` from its start.
fn config_with(adapters: &Adapters) -> EngineConfig {
    EngineConfig { adapters: adapters.clone(), max_failures: 3, ..config() }
}

fn places(control: &Control) -> Vec<(u32, u32)> {
    control.adapters.lock().unwrap().iter().map(|(place, number)| (*place, *number)).collect()
}

async fn load(adapters: &Adapters, name: &str, in_place: bool) -> Result<(), LoadError> {
    soon("a load", adapters.load(info(name), format!("/{name}"), in_place)).await
}

#[tokio::test]
async fn a_place_is_free_when_the_last_request_with_its_adapter_has_ended() {
    let adapters = Adapters::new([info("a")]);
    let (shard, mut control, stream) = FakeShard::new(0);
    tokio::spawn(shard.serve());
    let (engine, task) = engine_over_all(config_with(&adapters), vec![stream]);
    until_ready(&engine).await;
    assert_eq!(places(&control), [(0, 0)], "loaded at the start");
    load(&adapters, "b", false).await.unwrap();
    assert_eq!(places(&control), [(0, 0), (1, 1)]);
    assert_eq!(load(&adapters, "b", false).await, Err(LoadError::NameTaken("b".into())));
    let full = Err(LoadError::NoPlace { places: 2 });
    assert_eq!(load(&adapters, "c", false).await, full);
    assert_eq!(load(&adapters, "b", true).await, full, "the other one would have to go first");

    let first = with(&adapters, "a", 1);
    let running = tokio::spawn(listen(engine.submit(first.clone()).unwrap()));
    soon("the first step", control.steps.recv()).await.unwrap();
    assert!(adapters.unload("a").await && !adapters.unload("a").await);
    assert_eq!(load(&adapters, "c", false).await, full, "a request still runs with `a`");
    control.gate.add_permits(OPEN);
    assert_eq!(running.await.unwrap(), received_alone(&first));
    load(&adapters, "c", false).await.unwrap();
    assert_eq!(places(&control).iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 1]);
    let second = with(&adapters, "c", 2);
    assert!(second.adapter.unwrap().0 > 1, "a number is never used again");
    assert_eq!(listen(engine.submit(second.clone()).unwrap()).await, received_alone(&second));
    // A request that named `a` just before it was unloaded, and comes too late.
    let late = listen(engine.submit(first).unwrap()).await;
    assert!(late.failed.unwrap().contains("has been unloaded"));
    engine.drain();
    task.await.unwrap();
}

#[tokio::test]
async fn a_reload_changes_no_running_request() {
    let adapters = Adapters::new([info("a")]);
    let (shard, mut control, stream) = FakeShard::new(0);
    tokio::spawn(shard.serve());
    let (engine, _task) = engine_over_all(config_with(&adapters), vec![stream]);
    until_ready(&engine).await;
    let old = with(&adapters, "a", 1);
    let running = tokio::spawn(listen(engine.submit(old.clone()).unwrap()));
    soon("the first step", control.steps.recv()).await.unwrap();
    // The shard reads the load between two steps, and the request needs many more.
    let loading = load(&adapters, "a", true);
    tokio::pin!(loading);
    loop {
        control.gate.add_permits(1);
        tokio::select! {
            biased;
            loaded = &mut loading => break loaded.unwrap(),
            step = control.steps.recv() => drop(step.unwrap()),
        }
    }
    assert!(!running.is_finished());
    let new = with(&adapters, "a", 1);
    assert_ne!(new.adapter, old.adapter);
    control.gate.add_permits(OPEN);
    // The tokens of the fake shard depend on the adapter.
    let after = listen(engine.submit(new.clone()).unwrap()).await;
    assert_eq!((running.await.unwrap(), after), (received_alone(&old), received_alone(&new)));
    // The commands before this one have been handled when it is answered.
    load(&adapters, "b", false).await.unwrap();
    assert_eq!(places(&control), [(0, 2), (1, 1)], "the old one made room for `b`");
}

#[tokio::test]
async fn an_adapter_that_a_shard_refuses_is_an_answer() {
    let adapters = Adapters::default();
    let (mut shard, control, stream) = FakeShard::new(OPEN);
    shard.broken = vec!["/b"];
    tokio::spawn(shard.serve());
    let (engine, _task) = engine_over_all(config_with(&adapters), vec![stream]);
    until_ready(&engine).await;
    let refused = Err(LoadError::Refused("/b is broken".into()));
    assert_eq!(load(&adapters, "b", false).await, refused);
    assert!(adapters.get("b").is_none());
    load(&adapters, "c", false).await.unwrap();
    assert_eq!(places(&control), [(0, 1)]);
    let request = with(&adapters, "c", 3);
    assert_eq!(listen(engine.submit(request.clone()).unwrap()).await, received_alone(&request));
}

/// The new shards get the adapters of this time. One that has become unreadable is unloaded, and
/// its request fails.
#[tokio::test]
async fn new_shards_load_the_adapters_that_are_loaded_now() {
    let adapters = Adapters::new([info("a")]);
    let (shard, mut control, stream) = FakeShard::new(1);
    let dying = tokio::spawn(shard.serve());
    let (mut next, next_control, next_stream) = FakeShard::new(OPEN);
    next.broken = vec!["/c"];
    tokio::spawn(next.serve());
    let (engine, _task) = engine_over_all(config_with(&adapters), vec![stream, next_stream]);
    until_ready(&engine).await;
    assert!(adapters.unload("a").await);
    load(&adapters, "b", false).await.unwrap();
    load(&adapters, "c", false).await.unwrap();
    let requests = ["b", "c"].map(|name| with(&adapters, name, 5));
    let listeners =
        requests.each_ref().map(|request| tokio::spawn(listen(engine.submit(request.clone()).unwrap())));
    for _ in 0..2 {
        soon("a step", control.steps.recv()).await.unwrap();
    }
    dying.abort();
    let [kept, lost] = listeners;
    let kept = kept.await.unwrap();
    assert_eq!(kept.tokens, received_alone(&requests[0]).tokens);
    assert!(lost.await.unwrap().failed.unwrap().contains("/c is broken"));
    assert!(adapters.get("c").is_none() && adapters.get("b").is_some());
    assert_eq!(places(&next_control).len(), 1);
    assert_eq!(Some(AdapterId(places(&next_control)[0].1)), requests[0].adapter);
}

#[tokio::test]
async fn an_adapter_that_cannot_be_loaded_at_the_start_ends_the_start() {
    let adapters = Adapters::new([info("a")]);
    let (mut shard, _control, stream) = FakeShard::new(OPEN);
    shard.broken = vec![""];
    tokio::spawn(shard.serve());
    let (engine, task) = engine_over_all(config_with(&adapters), vec![stream]);
    task.await.unwrap();
    let state = format!("{:?}", *engine.state().borrow());
    assert!(state.contains("is broken"), "{state}");
    let ended = Err(LoadError::Unavailable("Server is shutting down"));
    assert_eq!(load(&adapters, "b", false).await, ended);
}

/// Five adapters and two places, on shards that are lost while requests run and wait.
#[tokio::test]
async fn adapters_beyond_the_places_take_turns() {
    let adapters = Adapters::new(["a", "b", "c", "d"].map(info));
    let (shard, mut control, stream) = FakeShard::new(20);
    let dying = tokio::spawn(shard.keeping(5).serve());
    let (next, next_control, next_stream) = FakeShard::new(OPEN);
    tokio::spawn(next.keeping(5).serve());
    let (engine, _task) = engine_over_all(config_with(&adapters), vec![stream, next_stream]);
    until_ready(&engine).await;
    assert_eq!(places(&control), [], "all wait in host memory");
    load(&adapters, "e", false).await.unwrap();
    let full = Err(LoadError::NoMemory { most: 5 });
    assert_eq!(load(&adapters, "f", false).await, full);

    let names = ["a", "b", "c", "d", "e", "a", "c"];
    let requests: Vec<Request> = (0..).zip(names).map(|(seed, name)| with(&adapters, name, seed)).collect();
    let listeners: Vec<_> = requests
        .iter()
        .map(|request| tokio::spawn(listen(engine.submit(request.clone()).unwrap())))
        .collect();
    for _ in 0..20 {
        soon("a step", control.steps.recv()).await.unwrap();
    }
    assert_eq!(places(&control).len(), 2);
    // `b` runs and `d` waits. Their requests end as they began.
    assert!(adapters.unload("b").await && adapters.unload("d").await);
    dying.abort();
    for (listener, request) in listeners.into_iter().zip(&requests) {
        assert_eq!(listener.await.unwrap().tokens, received_alone(request).tokens, "{request:?}");
    }
    // The memory of both is free. Their requests held it, and these have ended.
    load(&adapters, "f", false).await.unwrap();
    load(&adapters, "g", false).await.unwrap();
    assert_eq!(load(&adapters, "h", false).await, full);
    let last = with(&adapters, "g", 9);
    assert_eq!(listen(engine.submit(last.clone()).unwrap()).await, received_alone(&last));
    assert_eq!(places(&next_control).len(), 2);
}
