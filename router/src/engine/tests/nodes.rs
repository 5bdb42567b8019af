//! Ranks of other machines, which connect over TCP. Rank 0 is a process, and the others are
//! threads.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_proto::from_shard::Message;
use millrace_proto::handshake::{HandshakeError, Refusal, Secret, introduce};
use millrace_proto::{FromShard, frame};
use millrace_scheduler::test_support::alone;
use millrace_test_patience::patience;

use super::processes::{answer, pretend};
use super::{config, limits, listen, ready, request, soon, until_ready};
use crate::engine::group::{NodeListener, OtherNodes};
use crate::engine::{Engine, EngineConfig, EngineState, start};

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

fn right() -> Secret {
    secret("the secret of these tests")
}

/// Returns an address of loopback that no other test and no other process uses. The engine opens
/// its port for each group again, so a port cannot be handed over.
fn own_address() -> Ipv4Addr {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let number = (std::process::id() << 4) | (COUNT.fetch_add(1, Ordering::Relaxed) & 15);
    let [_, a, b, c] = number.to_be_bytes();
    Ipv4Addr::new(127, a, b, c)
}

/// Rank 0 on this machine, and the others at a free port.
fn others() -> OtherNodes {
    let listen = TcpListener::bind((own_address(), 0)).unwrap().local_addr().unwrap();
    OtherNodes { listen, secret: right(), local_ranks: 1 }
}

fn engine(others: &OtherNodes, world_size: usize) -> (Engine, tokio::task::JoinHandle<()>) {
    let config = EngineConfig { world_size, others: Some(others.clone()), max_failures: 3, ..config() };
    start(config, vec![pretend()])
}

/// Connects as soon as the port is open.
fn connect(to: SocketAddr) -> TcpStream {
    let since = Instant::now();
    loop {
        match TcpStream::connect(to) {
            Ok(stream) => return stream,
            Err(error) => assert!(since.elapsed() < patience(Duration::from_secs(20)), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn attempt(to: SocketAddr, secret: &Secret, rank: usize, world: usize) -> Result<TcpStream, HandshakeError> {
    let mut stream = connect(to);
    stream.set_read_timeout(Some(patience(Duration::from_secs(20)))).unwrap();
    introduce(&mut stream, secret, rank, world).map(|()| stream)
}

fn refusal(to: SocketAddr, secret: &Secret, rank: usize, world: usize) -> Refusal {
    match attempt(to, secret, rank, world) {
        Err(HandshakeError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Starts a rank that connects, and disconnects after `steps` steps.
fn rank(to: SocketAddr, rank: usize, world: usize, steps: usize) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut stream = loop {
            match attempt(to, &right(), rank, world) {
                Ok(stream) => break stream,
                // The port was being closed, or the former rank was still connected.
                Err(HandshakeError::Io(_) | HandshakeError::Refused(Refusal::Taken { .. })) => {}
                Err(other) => panic!("{other}"),
            }
        };
        frame::write(&mut stream, &FromShard { message: Some(Message::Ready(ready())) }).unwrap();
        answer(&mut stream, false, steps);
    })
}

#[tokio::test]
async fn ranks_connect_over_tcp_and_may_be_lost_during_a_generation() {
    let others = others();
    let (engine, task) = engine(&others, 3);
    let constant = rank(others.listen, 2, 3, usize::MAX);
    let mortal = rank(others.listen, 1, 3, 20);
    until_ready(&engine).await;
    let wanted: Vec<_> = (0..6).map(|seed| request(seed, 40, 60)).collect();
    let running: Vec<_> = wanted.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    // Other ranks replace them. The healthy rank was disconnected with its group.
    let heirs = std::thread::spawn(move || {
        mortal.join().unwrap();
        constant.join().unwrap();
        [1, 2].map(|number| rank(others.listen, number, 3, usize::MAX))
    });
    for (request, generation) in wanted.iter().zip(running) {
        let received = listen(generation).await;
        assert_eq!(received.failed, None);
        assert_eq!(received.tokens, alone(request, limits().vocab_size).0);
    }
    let heirs = heirs.join().unwrap();
    engine.drain();
    soon("the engine's end", task).await.unwrap();
    heirs.into_iter().for_each(|heir| heir.join().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_and_do_not_block_the_ranks() {
    let others = others();
    let (engine, task) = engine(&others, 3);
    let to = others.listen;
    let (ranks, strangers) = tokio::task::spawn_blocking(move || {
        let silent: Vec<TcpStream> = (0..150).map(|_| connect(to)).collect();
        connect(to).write_all(b"GET / HTTP/1.1\r\nhost: millrace\r\n\r\n").unwrap();
        assert_eq!(refusal(to, &secret("the secret of others"), 1, 3), Refusal::Secret);
        assert_eq!(refusal(to, &right(), 1, 2), Refusal::WorldSize { leader: 3, told: 2 });
        assert_eq!(refusal(to, &right(), 0, 3), Refusal::Rank { rank: 0 });
        assert_eq!(refusal(to, &right(), 3, 3), Refusal::Rank { rank: 3 });
        let _first = attempt(to, &right(), 1, 3).unwrap();
        // The listener notes the rank a moment after its handshake. Until then another one is
        // admitted, and dropped.
        let again = std::iter::repeat_with(|| attempt(to, &right(), 1, 3)).find_map(Result::err);
        assert!(matches!(again, Some(HandshakeError::Refused(Refusal::Taken { rank: 1 }))), "{again:?}");
        // The rank disconnects before the group is complete, and connects again.
        (silent, to)
    })
    .await
    .map(|(silent, to)| ([rank(to, 1, 3, usize::MAX), rank(to, 2, 3, usize::MAX)], silent))
    .unwrap();
    until_ready(&engine).await;
    assert!(matches!(&*engine.state().borrow(), EngineState::Ready(_)));
    drop(strangers);
    engine.drain();
    soon("the engine's end", task).await.unwrap();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_closed() {
    let others = others();
    let mut listener = NodeListener::open(&others, 2).await.unwrap();
    let waiting = tokio::spawn(async move { listener.next().await.0 });
    let since = Instant::now();
    let silent = tokio::task::spawn_blocking(move || {
        let mut heard = Vec::new();
        let _ = connect(others.listen).read_to_end(&mut heard);
        assert_eq!(
            attempt(others.listen, &right(), 1, 2).map(drop).map_err(|error| error.to_string()),
            Ok(())
        );
        heard
    });
    let heard = soon("the end of the silent connection", silent).await.unwrap();
    assert_eq!(heard[..8], *b"millrace");
    assert!(since.elapsed().as_secs() >= 4, "closed too early: {:?}", since.elapsed());
    assert_eq!(soon("the rank", waiting).await.unwrap(), 1);
}

#[tokio::test]
async fn machines_with_other_flags_are_refused() {
    let others = others();
    let (engine, task) = engine(&others, 2);
    let to = others.listen;
    let other = std::thread::spawn(move || {
        let mut stream = attempt(to, &right(), 1, 2).unwrap();
        let other = millrace_proto::Ready { dtype: "float16".into(), ..ready() };
        frame::write(&mut stream, &FromShard { message: Some(Message::Ready(other)) }).unwrap();
        answer(&mut stream, false, usize::MAX);
    });
    let state = super::until(&engine, "failure", |state| matches!(state, EngineState::Failed(_))).await;
    assert!(
        matches!(&state, EngineState::Failed(reason) if reason.contains("rank 1") && reason.contains("float16")),
        "{state:?}"
    );
    soon("the engine's end", task).await.unwrap();
    other.join().unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_the_flag_that_changes_it() {
    let others = others();
    let _taken = TcpListener::bind(others.listen).unwrap();
    let (engine, _task) = engine(&others, 2);
    let state = super::until(&engine, "failure", |state| matches!(state, EngineState::Failed(_))).await;
    assert!(matches!(&state, EngineState::Failed(reason) if reason.contains("--leader-port")), "{state:?}");
}
