//! Real shard processes: this test binary, started again as [`as_a_shard`].

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_proto::from_shard::Message;
use millrace_proto::{Fault, FromShard, Pong, ToShard, frame, to_shard};
use millrace_scheduler::test_support::{PretendShard, alone};

use super::{EngineConfig, config, limits, listen, ready, request, soon, until, until_ready};
use crate::engine::{Engine, EngineState, GenerationEvent, Request, ShardCommand, start};

/// A command that runs `script`. The arguments that the engine appends are `$1` to `$6`.
fn shell(script: &str) -> ShardCommand {
    let exe = std::env::current_exe().unwrap().into_os_string();
    let args = [OsString::from("-c"), script.into(), exe];
    ShardCommand { program: "sh".into(), args: args.into(), env: Default::default() }
}

/// A command that runs a pretend shard. With `PRETEND_FAULT` the shard reports this fault and
/// exits.
pub(super) fn pretend() -> ShardCommand {
    shell(
        "test \"$1 $3 $5\" = '--connect --rank --world-size' || exit 9; \
         PRETEND_CONNECT=$2 PRETEND_RANK=$4 exec \"$0\" --exact engine::tests::processes::as_a_shard --nocapture",
    )
}

/// Not a test, but the main function of a shard process.
#[test]
fn as_a_shard() {
    let Ok(address) = std::env::var("PRETEND_CONNECT") else { return };
    // Like a real shard, exit when the standard input is closed.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut stream = UnixStream::connect(address.strip_prefix("unix:").unwrap()).unwrap();
    let mut say = {
        let mut stream = stream.try_clone().unwrap();
        move |message| frame::write(&mut stream, &FromShard { message: Some(message) }).unwrap()
    };
    if let Ok(message) = std::env::var("PRETEND_FAULT") {
        say(Message::Fault(Fault { message, lasting: false }));
        std::process::exit(7);
    }
    // A test reads the process id, to kill the process, and the path of the socket.
    let device = std::process::id().to_string();
    say(Message::Ready(millrace_proto::Ready { device, model_type: address, ..ready() }));
    let answers = std::env::var("PRETEND_RANK").unwrap() == "0";
    answer(&mut stream, answers, usize::MAX);
    std::process::exit(0);
}

/// Runs up to `steps` steps, until the connection ends. All ranks compute, and one `answers`.
pub(super) fn answer(stream: &mut (impl Read + Write), answers: bool, steps: usize) {
    let (mut shard, mut scratch, mut left) = (PretendShard::new(limits()), Vec::new(), steps);
    while left > 0 {
        let message = match frame::read::<ToShard>(stream, &mut scratch).map(|message| message.message) {
            Ok(Some(to_shard::Message::Step(step))) => {
                left -= 1;
                let output = shard.run(&step).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                if !answers {
                    continue;
                }
                Message::Output(output)
            }
            Ok(Some(to_shard::Message::Ping(_))) => Message::Pong(Pong {}),
            _ => return,
        };
        if frame::write(stream, &FromShard { message: Some(message) }).is_err() {
            return;
        }
    }
}

/// The process id and the socket address of rank 0.
fn identity(engine: &Engine) -> (String, String) {
    match &*engine.state().borrow() {
        EngineState::Ready(ready) => (ready.device.clone(), ready.model_type.clone()),
        state => panic!("{state:?}"),
    }
}

async fn failure(engine: &Engine) -> String {
    match until(engine, "failure", |state| matches!(state, EngineState::Failed(_))).await {
        EngineState::Failed(reason) => reason,
        state => panic!("{state:?}"),
    }
}

/// Whether the process is neither running nor a zombie.
fn is_gone(pid: &str) -> bool {
    !std::process::Command::new("kill").args(["-0", pid]).output().unwrap().status.success()
}

#[tokio::test]
async fn a_process_serves_and_leaves_nothing_behind() {
    let (engine, task) = start(config(), vec![pretend()]);
    until_ready(&engine).await;
    let (pid, address) = identity(&engine);
    let socket = Path::new(address.strip_prefix("unix:").unwrap());
    assert!(!socket.parent().unwrap().exists(), "{address} is left on the disk");
    let wanted = request(5, 40, 30);
    let received = listen(engine.submit(wanted.clone()).unwrap()).await;
    assert_eq!(received.tokens, alone(&wanted, limits().vocab_size).0);
    engine.drain();
    soon("the engine's end", task).await.unwrap();
    assert!(is_gone(&pid));
}

#[tokio::test]
async fn killing_a_rank_ends_all_of_them() {
    let (engine, task) = start(EngineConfig { world_size: 2, ..config() }, vec![pretend()]);
    until_ready(&engine).await;
    let (pid, _) = identity(&engine);
    let endless = |i| Request { stop_tokens: Arc::default(), ..request(i, 40, 300) };
    let mut first = engine.submit(endless(8)).unwrap();
    let held: Vec<_> = (0..8).map(|i| engine.submit(endless(i)).unwrap()).collect();
    while !matches!(soon("a token", first.next()).await, Some(GenerationEvent::Token(..))) {}
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    for generation in held {
        let failed = listen(generation).await.failed.expect("every request gets an event");
        assert!(failed.contains("shard 0 ended (signal: 9"), "{failed}");
    }
    soon("the engine's end, with the other rank", task).await.unwrap();
    assert!(is_gone(&pid));
}

#[tokio::test]
async fn a_failed_start_is_explained() {
    let missing = ShardCommand { program: "/nowhere/millrace".into(), ..pretend() };
    let reason = failure(&start(config(), vec![missing]).0).await;
    assert!(reason.starts_with("cannot start /nowhere/millrace: "), "{reason}");

    let reason = failure(&start(config(), vec![shell("exit 3")]).0).await;
    assert!(reason.starts_with("shard 0 ended (exit status: 3)"), "{reason}");

    let mut faulty = pretend();
    faulty.env.insert("PRETEND_FAULT".into(), "config.json: unknown model_type \"x\"".into());
    let reason = failure(&start(config(), vec![faulty]).0).await;
    assert_eq!(reason, "shard 0: config.json: unknown model_type \"x\"");

    let short = EngineConfig { startup_silence: Duration::from_millis(200), ..config() };
    let reason = failure(&start(short, vec![shell("exec sleep 1000")]).0).await;
    assert!(reason.starts_with("shard 0 did not connect within"), "{reason}");
}

#[tokio::test]
async fn draining_while_loading_ends_at_once() {
    let (engine, task) = start(config(), vec![shell("exec sleep 1000")]);
    engine.drain();
    soon("the engine's end", task).await.unwrap();
    assert_eq!(*engine.state().borrow(), EngineState::Draining);
}
