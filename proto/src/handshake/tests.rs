//! Tests of the handshake with right and wrong ranks, and with wrong routers.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

const RANK: usize = 3;
const WORLD: usize = 4;

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

fn right() -> Secret {
    secret("a secret of the right length")
}

fn guest<'s>(host: &RouterHandshake, secret: &'s Secret, world_size: usize) -> RankHandshake<'s> {
    RankHandshake::new(host.challenge, secret, RANK, world_size).unwrap()
}

/// The verdict of a router that admits rank 3 of four.
fn judged(host: &RouterHandshake, hello: &[u8; HELLO]) -> ([u8; VERDICT], Result<usize, Refusal>) {
    host.answer(hello, &right(), WORLD, |rank| match rank {
        RANK => Ok(()),
        rank => Err(Refusal::Rank { rank }),
    })
}

#[test]
fn both_sides_agree_on_the_outcome() {
    let told = right();
    for (told_world, wanted) in [(WORLD, Ok(RANK)), (5, Err(Refusal::WorldSize { leader: WORLD, told: 5 }))] {
        let host = RouterHandshake::new().unwrap();
        let guest = guest(&host, &told, told_world);
        let (verdict, outcome) = judged(&host, &guest.hello);
        assert_eq!(outcome, wanted);
        assert_eq!(guest.check(&verdict), wanted.map(|_| ()));
    }
    for refusal in [Refusal::Rank { rank: RANK }, Refusal::Taken { rank: RANK }] {
        let host = RouterHandshake::new().unwrap();
        let guest = guest(&host, &told, WORLD);
        let (verdict, outcome) = host.answer(&guest.hello, &told, WORLD, |_| Err(refusal.clone()));
        assert_eq!(outcome, Err(refusal.clone()));
        assert_eq!(guest.check(&verdict), Err(refusal));
    }
}

#[test]
fn both_sides_notice_another_secret() {
    let (host, other) = (RouterHandshake::new().unwrap(), secret("a secret of the right lengths"));
    let stranger = guest(&host, &other, WORLD);
    let (verdict, outcome) = judged(&host, &stranger.hello);
    assert_eq!(outcome, Err(Refusal::Secret));
    assert_eq!(stranger.check(&verdict), Err(Refusal::Secret));
    assert_eq!(verdict[1..], [0; VERDICT - 1], "the verdict has no proof");

    // A router with another secret cannot prove itself, even if it admits every rank.
    let told = right();
    let guest = guest(&host, &told, WORLD);
    let (verdict, _) = host.answer(&stranger.hello, &other, WORLD, |_| Ok(()));
    assert_eq!(verdict[0], WELCOME);
    assert_eq!(guest.check(&verdict), Err(Refusal::Secret));
}

#[test]
fn a_recorded_handshake_proves_nothing_later() {
    let (first, second, told) = (RouterHandshake::new().unwrap(), RouterHandshake::new().unwrap(), right());
    assert_ne!(first.challenge, second.challenge);
    let guest = guest(&first, &told, WORLD);
    let (verdict, outcome) = judged(&first, &guest.hello);
    assert_eq!(outcome, Ok(RANK));
    assert_eq!(judged(&second, &guest.hello).1, Err(Refusal::Secret));
    // The router's own proof is worthless as well, sent back as the proof of a rank or sent to
    // another rank.
    let again = RankHandshake::new(first.challenge, &told, RANK, WORLD).unwrap();
    assert_eq!(again.check(&verdict), Err(Refusal::Secret));
    let mut mirrored = guest.hello;
    mirrored[HELLO_BODY..].copy_from_slice(&verdict[VERDICT_BODY..]);
    assert_eq!(judged(&first, &mirrored).1, Err(Refusal::Secret));
}

proptest! {
    #[test]
    fn a_changed_byte_is_noticed(at in 0..HELLO, in_verdict in 0..VERDICT, change in 1u8..) {
        let (host, told) = (RouterHandshake::new().unwrap(), right());
        let guest = guest(&host, &told, WORLD);
        let mut hello = guest.hello;
        hello[at] ^= change;
        prop_assert_eq!(judged(&host, &hello).1, Err(Refusal::Secret));
        let mut verdict = judged(&host, &guest.hello).0;
        verdict[in_verdict] ^= change;
        prop_assert_eq!(guest.check(&verdict), Err(Refusal::Secret));
    }
}

#[test]
fn short_secrets_are_refused_and_secrets_are_never_printed() {
    assert_eq!(Secret::new("fifteen letters"), Err(ShortSecret(15)));
    assert!(Secret::new("sixteen letters.").is_ok());
    assert!(!format!("{:?}", right()).contains("secret"));
}

#[test]
fn the_proof_is_hmac_sha256() {
    // RFC 4231 has no test with a digest as the key, so this test spells out the definition.
    let key = Sha256::digest("a secret of the right length");
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(&key).for_each(|(block, key)| *block ^= key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update("rank").chain_update("said").finalize();
    let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
    assert_eq!(right().sign(b"rank", &[b"sa", b"id"]).finalize().into_bytes(), outer);
}

/// A stream that sends fixed bytes, whatever it receives.
struct Recording(Cursor<Vec<u8>>, Vec<u8>);

impl Read for Recording {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_rank_refuses_other_peers() {
    let meet = |sent: &[u8]| {
        let mut stream = Recording(Cursor::new(sent.to_vec()), Vec::new());
        (introduce(&mut stream, &right(), RANK, WORLD), stream.1)
    };
    let (outcome, received) = meet(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
    assert!(matches!(outcome, Err(HandshakeError::Refused(Refusal::Stranger))), "{outcome:?}");
    assert_eq!(received, prefix(), "the peer gets no proof");
    assert!(matches!(meet(b"millrace").0, Err(HandshakeError::Io(_))));

    let mut other = prefix();
    other[MAGIC.len()..].copy_from_slice(b"99.1.2-beta\n\0\0\0\0");
    let outcome = meet(&other).0.unwrap_err().to_string();
    assert!(outcome.contains("runs version 99.1.2-beta\\n, and this one"), "{outcome}");

    // A recorded handshake, replayed.
    let (host, told) = (RouterHandshake::new().unwrap(), right());
    let verdict = judged(&host, &guest(&host, &told, WORLD).hello).0;
    let (outcome, _) = meet(&[&host.challenge[..], &verdict].concat());
    assert!(matches!(outcome, Err(HandshakeError::Refused(Refusal::Secret))), "{outcome:?}");
}

#[cfg(feature = "tokio")]
mod over_a_stream {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    async fn refused_by_router(sent: &[u8]) -> HandshakeError {
        let (mut ours, mut theirs) = duplex(1024);
        theirs.write_all(sent).await.unwrap();
        theirs.shutdown().await.unwrap();
        let outcome = receive(&mut ours, &right(), WORLD, |_| Ok(())).await.unwrap_err();
        drop(ours);
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).await.unwrap();
        assert_eq!(received[..PREFIX], prefix());
        outcome
    }

    #[tokio::test]
    async fn a_router_refuses_other_peers() {
        let garbage = refused_by_router(&[0x5a; 300]).await;
        assert!(matches!(garbage, HandshakeError::Refused(Refusal::Stranger)), "{garbage}");
        let silent = refused_by_router(b"").await;
        assert!(matches!(silent, HandshakeError::Io(_)), "{silent}");
        let mut other = prefix();
        other[PREFIX - 1] = b'x';
        let other = refused_by_router(&other).await;
        assert!(matches!(other, HandshakeError::Refused(Refusal::Version { .. })), "{other}");
        // The connection ends after the correct beginning of a hello.
        let cut = refused_by_router(&prefix()).await;
        assert!(matches!(cut, HandshakeError::Io(_)), "{cut}");
    }

    #[tokio::test]
    async fn a_rank_connects_to_a_router() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let rank = std::thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            crate::liveness::watch(&stream).unwrap();
            introduce(&mut stream, &right(), RANK, WORLD)
        });
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        assert_eq!(receive(&mut stream, &right(), WORLD, |_| Ok(())).await.unwrap(), RANK);
        rank.join().unwrap().unwrap();
    }
}
