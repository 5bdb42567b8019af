//! Tests of the sockets.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::kv_events::{Endpoint, KvEvents, KvEventsConfig};
use crate::scheduler::CacheEvent;

const PATIENCE: Duration = Duration::from_secs(30);

/// A peer that speaks ZMTP 3.0.
struct Peer(TcpStream);

impl Peer {
    async fn connect(address: &str, socket: &str) -> Self {
        Peer::greet(TcpStream::connect(address).await.unwrap(), socket).await
    }

    async fn greet(mut stream: TcpStream, socket: &str) -> Self {
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
        timeout(PATIENCE, read).await.expect("a frame in time").unwrap()
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

    /// Whether anything comes within so many milliseconds.
    async fn has_more(&mut self, millis: u64) -> bool {
        timeout(Duration::from_millis(millis), self.0.peek(&mut [0])).await.is_ok()
    }

    /// Whether the other side closes the connection.
    async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        timeout(PATIENCE, self.0.read_to_end(&mut rest)).await.is_ok()
    }
}

fn config(endpoint: Endpoint, replay: Option<String>) -> KvEventsConfig {
    let replay_endpoint = replay.map(Endpoint::Bind);
    KvEventsConfig { endpoint, replay_endpoint, topic: "kv@pod@model".into(), buffer_steps: 4, hwm: 100 }
}

/// An address of loopback that was free a moment ago.
fn free() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn removed(byte: u8) -> CacheEvent {
    CacheEvent::Removed(vec![[byte; 16]])
}

/// Publishes until a subscriber has a message: a subscription takes effect a little later.
async fn first_message(events: &KvEvents, peer: &mut Peer) -> Vec<Vec<u8>> {
    loop {
        events.publish(&[removed(9)]);
        if peer.has_more(50).await {
            return peer.message().await;
        }
    }
}

#[tokio::test]
async fn subscribers_get_each_batch_of_their_topic() {
    let address = free();
    let events = KvEvents::start(config(Endpoint::Bind(address.clone()), None)).unwrap();
    let mut peer = Peer::connect(&address, "SUB").await;
    // Other topics, a command and a message of several frames change nothing.
    peer.write(0, b"\x01other").await;
    peer.write(4, b"\x09SUBSCRIBE").await;
    peer.write(1, b"\x01").await;
    peer.write(0, b"\x01").await;
    events.publish(&[removed(1)]);
    sleep(Duration::from_millis(50)).await;
    peer.write(0, b"\x01kv@").await;
    let first = first_message(&events, &mut peer).await;
    assert_eq!((first.len(), first[0].as_slice(), first[1].len()), (3, &b"kv@pod@model"[..], 8));
    let payload = crate::kv_events::message::encode(0.0, &[removed(9)]);
    assert_eq!(first[2][10..], payload[10..], "all but the time");
    let first = u64::from_be_bytes(first[1].as_slice().try_into().unwrap());
    assert!(first >= 2, "the clearing at the start and the first event came before the subscription");
    events.publish(&[]);
    events.publish(&[removed(2), removed(3)]);
    let mut last = first;
    loop {
        let message = peer.message().await;
        let number = u64::from_be_bytes(message[1].as_slice().try_into().unwrap());
        assert_eq!(number, last + 1, "no batch is missing");
        last = number;
        if message[2].windows(16).any(|window| window == [3; 16]) {
            break;
        }
    }
    // Without a subscription, nothing comes any more.
    peer.write(0, b"\0kv@").await;
    sleep(Duration::from_millis(50)).await;
    events.publish(&[removed(4)]);
    assert!(!peer.has_more(100).await);
}

#[tokio::test]
async fn a_subscriber_that_accepts_connections_is_connected_to_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let events = KvEvents::start(config(Endpoint::Connect(address), None)).unwrap();
    for _ in 0..2 {
        let (stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        let mut peer = Peer::greet(stream, "SUB").await;
        peer.write(0, b"\x01").await;
        assert_eq!(first_message(&events, &mut peer).await[0], b"kv@pod@model");
    }
}

#[tokio::test]
async fn earlier_batches_are_sent_again() {
    let address = free();
    let events = KvEvents::start(config(Endpoint::Connect(free()), Some(address.clone()))).unwrap();
    (1..=6).for_each(|byte| events.publish(&[removed(byte)]));
    let mut peer = Peer::connect(&address, "DEALER").await;
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
    let (address, replays) = (free(), free());
    let _events = KvEvents::start(config(Endpoint::Bind(address.clone()), Some(replays.clone()))).unwrap();
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
        for address in [&address, &replays] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(greeting).await.unwrap();
            assert!(Peer(stream).is_closed().await, "{greeting:?}");
        }
    }
    // Too many subscriptions, and a request that is no number.
    let mut peer = Peer::connect(&address, "SUB").await;
    for _ in 0..65 {
        peer.write(0, b"\x01").await;
    }
    assert!(peer.is_closed().await);
    let mut peer = Peer::connect(&replays, "REQ").await;
    peer.write(0, b"seven").await;
    assert!(peer.is_closed().await);
    // A message of too many frames.
    let mut peer = Peer::connect(&replays, "REQ").await;
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
    let address = free();
    let events = KvEvents::start(config(Endpoint::Bind(address.clone()), None)).unwrap();
    let mut peer = Peer::connect(&address, "SUB").await;
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
    let address = free();
    let _first = KvEvents::start(config(Endpoint::Bind(address.clone()), None)).unwrap();
    let error = KvEvents::start(config(Endpoint::Bind(address.clone()), None)).unwrap_err();
    assert!(error.contains(&format!("tcp://{address}")) && error.contains("in use"), "{error}");
}
