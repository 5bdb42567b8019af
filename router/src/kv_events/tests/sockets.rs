//! Tests of the sockets.

use std::net::SocketAddr;
use std::time::Duration;

use millrace_scheduler::CacheEvent;
use millrace_test_patience::patience;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::engine::Adapters;
use crate::kv_events::publisher::{Publisher, publish};
use crate::kv_events::{Endpoint, KvEvents, KvEventsConfig};

/// Returns the longest time that a test waits.
fn test_timeout() -> Duration {
    patience(Duration::from_secs(30))
}

/// A peer that speaks ZMTP 3.0.
struct Peer<S>(S);

impl Peer<TcpStream> {
    async fn connect(address: SocketAddr, socket: &str) -> Self {
        Peer::greet(TcpStream::connect(address).await.unwrap(), socket).await
    }

    /// Whether anything comes within so many milliseconds.
    async fn has_more(&mut self, millis: u64) -> bool {
        timeout(Duration::from_millis(millis), self.0.peek(&mut [0])).await.is_ok()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    async fn greet(mut stream: S, socket: &str) -> Self {
        let mut greeting = [0; 64];
        greeting[0] = 0xff;
        // libzmq writes the length of an identity of ZMTP 1 into the padding.
        greeting[8] = 1;
        greeting[9] = 0x7f;
        greeting[10..12].copy_from_slice(&[3, 1]);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).await.unwrap();
        let mut theirs = [0; 64];
        stream.read_exact(&mut theirs).await.unwrap();
        assert_eq!((theirs[0], theirs[9], theirs[10], &theirs[12..17]), (0xff, 0x7f, 3, &b"NULL\0"[..]));
        let mut peer = Peer(stream);
        let ready = [
            &b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type\0\0\0"[..],
            &[socket.len() as u8],
            socket.as_bytes(),
        ];
        peer.write(4, &ready.concat()).await;
        assert!(peer.read().await.1.starts_with(b"\x05READY\x0bSocket-Type"));
        peer
    }

    async fn write(&mut self, flags: u8, body: &[u8]) {
        self.0.write_all(&[&[flags, body.len() as u8][..], body].concat()).await.unwrap();
    }

    async fn read(&mut self) -> (u8, Vec<u8>) {
        let read = async {
            let flags = self.0.read_u8().await?;
            let len =
                if flags & 2 == 0 { u64::from(self.0.read_u8().await?) } else { self.0.read_u64().await? };
            let mut body = vec![0; len as usize];
            self.0.read_exact(&mut body).await?;
            std::io::Result::Ok((flags & 5, body))
        };
        timeout(test_timeout(), read).await.expect("a frame in time").unwrap()
    }

    /// The next message: topic, number and payload, after the frames of an envelope.
    async fn message(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.read().await;
            frames.push(body);
            if flags == 0 {
                return frames;
            }
        }
    }

    async fn number(&mut self) -> u64 {
        let message = self.message().await;
        u64::from_be_bytes(message[message.len() - 2].as_slice().try_into().unwrap())
    }

    /// Whether the other side closes the connection.
    async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        timeout(test_timeout(), self.0.read_to_end(&mut rest)).await.is_ok()
    }
}

fn config(endpoint: Endpoint, replay: Option<String>) -> KvEventsConfig {
    let replay_endpoint = replay.map(Endpoint::Bind);
    KvEventsConfig { endpoint, replay_endpoint, topic: "kv@pod@model".into(), buffer_steps: 4, hwm: 100 }
}

/// An address of loopback whose port the system chooses.
fn any_port() -> String {
    "127.0.0.1:0".into()
}

/// Starts with a socket for subscribers. Returns its address.
fn start_bound() -> (KvEvents, SocketAddr) {
    let (events, bound) =
        KvEvents::start_bound(config(Endpoint::Bind(any_port()), None), &Adapters::default()).unwrap();
    (events, bound.events.unwrap())
}

fn removed(byte: u8) -> CacheEvent {
    CacheEvent::Removed(vec![[byte; 16]])
}

/// Publishes until a subscriber has a message: a subscription takes effect a little later.
async fn first_message(events: &KvEvents, peer: &mut Peer<TcpStream>) -> Vec<Vec<u8>> {
    loop {
        events.publish(&[removed(9)]);
        if peer.has_more(50).await {
            return peer.message().await;
        }
    }
}

/// Lets all tasks run until each of them waits. The clock must be paused, and no socket be used.
async fn until_all_wait() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn subscribers_get_each_batch_of_their_topic() {
    let config = config(Endpoint::Connect(any_port()), None);
    let events = KvEvents::without_sockets(&config, &Adapters::default());
    let (client, stream) = tokio::io::duplex(64 << 10);
    let serving = tokio::spawn(publish(stream, Publisher::new(&config, &events.history)));
    let mut peer = Peer::greet(client, "SUB").await;
    // Other topics, a command and a message of several frames change nothing.
    peer.write(0, b"\x01other").await;
    peer.write(4, b"\x09SUBSCRIBE").await;
    peer.write(1, b"\x01").await;
    peer.write(0, b"\x01").await;
    until_all_wait().await;
    events.publish(&[removed(1)]);
    until_all_wait().await;
    peer.write(0, b"\x01kv@").await;
    until_all_wait().await;
    events.publish(&[removed(9)]);
    let first = peer.message().await;
    assert_eq!((first.len(), first[0].as_slice(), first[1].len()), (3, &b"kv@pod@model"[..], 8));
    let payload = crate::kv_events::message::encode(0.0, &[removed(9)], &|_| None);
    assert_eq!(first[2][10..], payload[10..], "all but the time");
    // The clearing at the start and the first event came before the subscription.
    assert_eq!(first[1], u64::to_be_bytes(2));
    events.publish(&[]);
    events.publish(&[removed(2), removed(3)]);
    let second = peer.message().await;
    assert_eq!(second[1], u64::to_be_bytes(3), "no batch is missing");
    assert!(second[2].windows(16).any(|window| window == [3; 16]));
    // Without a subscription, nothing comes any more.
    peer.write(0, b"\0kv@").await;
    until_all_wait().await;
    events.publish(&[removed(4)]);
    until_all_wait().await;
    serving.abort();
    let mut rest = Vec::new();
    peer.0.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn a_subscriber_that_accepts_connections_is_connected_to_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let events = KvEvents::start(config(Endpoint::Connect(address), None), &Adapters::default()).unwrap();
    for _ in 0..2 {
        let (stream, _) = timeout(test_timeout(), listener.accept()).await.unwrap().unwrap();
        let mut peer = Peer::greet(stream, "SUB").await;
        peer.write(0, b"\x01").await;
        assert_eq!(first_message(&events, &mut peer).await[0], b"kv@pod@model");
    }
}

#[tokio::test]
async fn earlier_batches_are_sent_again() {
    // This listener accepts nobody.
    let deaf = TcpListener::bind(any_port()).await.unwrap();
    let subscriber = Endpoint::Connect(deaf.local_addr().unwrap().to_string());
    let (events, bound) =
        KvEvents::start_bound(config(subscriber, Some(any_port())), &Adapters::default()).unwrap();
    (1..=6).for_each(|byte| events.publish(&[removed(byte)]));
    let mut peer = Peer::connect(bound.replay.unwrap(), "DEALER").await;
    // Of the numbers 0 to 6 the last four are kept.
    for (wanted, expected) in [(0u64, vec![3, 4, 5, 6]), (5, vec![5, 6]), (7, vec![])] {
        peer.write(1, b"").await;
        peer.write(0, &wanted.to_be_bytes()).await;
        for number in expected {
            let message = peer.message().await;
            assert_eq!(
                (message.len(), message[0].as_slice(), message[1].as_slice()),
                (4, &b""[..], &b"kv@pod@model"[..])
            );
            assert_eq!(message[2], u64::to_be_bytes(number));
            assert!(message[3].windows(16).any(|window| window == [number as u8; 16]));
        }
        assert_eq!(peer.message().await, [&b""[..], b"", &[0xff; 8], b""]);
    }
    // Without an envelope there is none in the answer.
    peer.write(0, &6u64.to_be_bytes()).await;
    assert_eq!((peer.number().await, peer.number().await), (6, u64::MAX));
}

#[tokio::test]
async fn peers_that_break_the_protocol_are_disconnected() {
    let both = config(Endpoint::Bind(any_port()), Some(any_port()));
    let (_events, bound) = KvEvents::start_bound(both, &Adapters::default()).unwrap();
    let (address, replays) = (bound.events.unwrap(), bound.replay.unwrap());
    for greeting in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        // A frame of 2^60 bytes after a correct greeting.
        &[&GREETING[..], &[0x02, 0x10, 0, 0, 0, 0, 0, 0, 0]].concat(),
        // An unknown flag.
        &[&GREETING[..], &[0x08, 0]].concat(),
        // A message instead of READY, a READY that ends early, and one without a type.
        &[&GREETING[..], b"\x00\x01x"].concat(),
        &[&GREETING[..], b"\x04\x0b\x05READY\x0bSock"].concat(),
        &[&GREETING[..], b"\x04\x06\x05READY"].concat(),
        // PUB cannot serve PUB.
        &[&GREETING[..], b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"].concat(),
        // Another mechanism.
        &GREETING.map(|byte| if byte == b'N' { b'P' } else { byte }),
    ] {
        for address in [address, replays] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(greeting).await.unwrap();
            assert!(Peer(stream).is_closed().await, "{greeting:?}");
        }
    }
    // Too many subscriptions, and a request that is no number.
    let mut peer = Peer::connect(address, "SUB").await;
    for _ in 0..65 {
        peer.write(0, b"\x01").await;
    }
    assert!(peer.is_closed().await);
    let mut peer = Peer::connect(replays, "REQ").await;
    peer.write(0, b"seven").await;
    assert!(peer.is_closed().await);
    // A message of too many frames.
    let mut peer = Peer::connect(replays, "REQ").await;
    for _ in 0..9 {
        peer.write(1, b"").await;
    }
    assert!(peer.is_closed().await);
}

const GREETING: [u8; 64] = {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    (greeting[12], greeting[13], greeting[14], greeting[15]) = (b'N', b'U', b'L', b'L');
    greeting
};

#[tokio::test]
async fn a_slow_subscriber_sees_a_gap_in_the_numbers() {
    let (events, address) = start_bound();
    let mut peer = Peer::connect(address, "SUB").await;
    peer.write(0, b"\x01").await;
    first_message(&events, &mut peer).await;
    // More than the buffers of the connection hold, while the subscriber reads nothing.
    let much = CacheEvent::Removed(vec![[7; 16]; 60_000]);
    for _ in 0..40 {
        events.publish(std::slice::from_ref(&much));
        sleep(Duration::from_millis(5)).await;
    }
    events.publish(&[removed(8)]);
    let (mut numbers, mut is_last) = (Vec::new(), false);
    while !is_last {
        let message = peer.message().await;
        numbers.push(u64::from_be_bytes(message[1].as_slice().try_into().unwrap()));
        is_last = message[2].windows(16).any(|window| window == [8; 16]);
    }
    assert!(numbers.is_sorted() && numbers.windows(2).any(|pair| pair[1] > pair[0] + 1), "{numbers:?}");
}

#[tokio::test]
async fn an_endpoint_in_use_is_named() {
    let (_first, address) = start_bound();
    let error =
        KvEvents::start(config(Endpoint::Bind(address.to_string()), None), &Adapters::default()).unwrap_err();
    assert!(error.contains(&format!("tcp://{address}")) && error.contains("in use"), "{error}");
}
