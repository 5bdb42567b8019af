//! How groups come together, and who is turned away.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{LONG, wires};
use crate::collective::address::{Address, Place, Token};
use crate::collective::{CollectiveError, MAX_WORLD_SIZE, Operation, Wire, join, lead};

/// As long as rank 0 waits for a connection to say hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

#[test]
fn strangers_do_not_disturb_the_forming_group() {
    for wire in wires() {
        let lead = lead(wire, 3, LONG).unwrap();
        let address = lead.address();
        let Address { place, .. } = Address::decode(&address).unwrap();
        let strange = Address { token: Token::random().unwrap(), place }.encode();
        let silent = match place {
            Place::Tcp(socket) => Some(TcpStream::connect(socket).unwrap()),
            Place::Shm { .. } => None,
        };
        thread::scope(|scope| {
            let first = scope.spawn(|| lead.wait());
            let second = scope.spawn(|| join(&address, 1, 3, LONG));
            thread::sleep(Duration::from_millis(50));
            assert!(matches!(join(&strange, 2, 3, LONG), Err(CollectiveError::Gone)));
            assert!(matches!(join(&address, 1, 3, LONG), Err(CollectiveError::Taken { rank: 1 })));
            assert!(matches!(join(&address, 3, 3, LONG), Err(CollectiveError::Rank { rank: 3, .. })));
            assert!(matches!(join(&address, 0, 3, LONG), Err(CollectiveError::Rank { rank: 0, .. })));
            let other = join(&address, 3, 4, LONG);
            assert!(matches!(other, Err(CollectiveError::OtherWorldSize { ours: 4, theirs: 3 })));
            assert!(!first.is_finished() && !second.is_finished());
            let mut third = join(&address, 2, 3, LONG).unwrap();
            let (mut first, mut second) = (first.join().unwrap().unwrap(), second.join().unwrap().unwrap());
            scope.spawn(move || first.barrier().unwrap());
            scope.spawn(move || second.barrier().unwrap());
            third.barrier().unwrap();
        });
        drop(silent);
        let gone = join(&address, 1, 3, Duration::from_millis(200));
        assert!(matches!(gone, Err(CollectiveError::Gone)), "{wire:?}: {:?}", gone.err());
    }
}

/// More silent connections than rank 0 listens to at a time.
#[test]
fn a_rank_finds_a_place_among_any_number_of_silent_strangers() {
    let lead = lead(Wire::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST)), 2, LONG).unwrap();
    let address = lead.address();
    let Place::Tcp(socket) = Address::decode(&address).unwrap().place else { panic!("not over TCP") };
    thread::scope(|scope| {
        let first = scope.spawn(|| lead.wait());
        let silent: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(socket).unwrap()).collect();
        // Much sooner than the strangers are sent away for their silence.
        let since = Instant::now();
        let mut second = join(&address, 1, 2, LONG).expect("the oldest strangers make room");
        assert!(since.elapsed() < HELLO_WITHIN, "{:?}", since.elapsed());
        let mut first = first.join().unwrap().unwrap();
        scope.spawn(move || first.barrier().unwrap());
        second.barrier().unwrap();
        drop(silent);
    });
}

#[test]
fn a_group_that_does_not_come_together_ends_at_the_deadline() {
    let deadline = Duration::from_millis(200);
    for wire in wires() {
        let lead = lead(wire, 3, deadline).unwrap();
        let address = lead.address();
        thread::scope(|scope| {
            let other = scope.spawn(|| join(&address, 1, 3, deadline));
            let error = lead.wait().err().unwrap();
            let missing =
                matches!(error, CollectiveError::TimedOut { operation: Operation::Rendezvous, rank: 2, .. });
            // Rank 1 may have begun to wait, and so given up, a moment before.
            assert!(missing || matches!(error, CollectiveError::Closed { rank: 1 }), "{error}");
            assert!(other.join().unwrap().is_err());
        });
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for wire in wires() {
        for world_size in [0, MAX_WORLD_SIZE + 1] {
            assert!(matches!(lead(wire, world_size, LONG), Err(CollectiveError::WorldSize { .. })));
        }
    }
    assert!(matches!(join(b"nothing", 1, 2, LONG), Err(CollectiveError::Address)));
    let any = Wire::Tcp(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    assert!(matches!(lead(any, 2, LONG), Err(CollectiveError::Unspecified(_))));
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let address = Address { token: Token::random().unwrap(), place: Place::Tcp(nobody) }.encode();
    assert!(matches!(join(&address, 1, 2, LONG), Err(CollectiveError::Gone)));
    if cfg!(target_os = "linux") {
        // An open file of this process that is no memory of a group.
        let place = Place::Shm { process: std::process::id(), descriptor: 0 };
        let address = Address { token: Token::random().unwrap(), place }.encode();
        assert!(join(&address, 1, 2, LONG).is_err());
    }
}
