//! Tests of forming a group, and of connections that are refused.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{long, transports};
use crate::collective::address::{GroupAddress, GroupToken, LeaderLocation};
use crate::collective::{CollectiveError, MAX_WORLD_SIZE, Operation, Transport, join, lead};

/// The time that a connection has to send its hello message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn unknown_connections_do_not_disturb_the_forming_group() {
    for transport in transports() {
        let lead = lead(transport, 3, long()).unwrap();
        let address = lead.address();
        let GroupAddress { location, .. } = GroupAddress::decode(&address).unwrap();
        let wrong_token = GroupAddress { token: GroupToken::random().unwrap(), location }.encode();
        let silent = match location {
            LeaderLocation::Tcp(socket) => Some(TcpStream::connect(socket).unwrap()),
            LeaderLocation::Shm { .. } => None,
        };
        thread::scope(|scope| {
            let first = scope.spawn(|| lead.wait());
            // Two processes join as rank 1. One of them is refused; the other one waits.
            let (joined, second) = mpsc::channel();
            for joined in [joined.clone(), joined] {
                let address = &address;
                scope.spawn(move || joined.send(join(address, 1, 3, long())));
            }
            assert!(matches!(second.recv().unwrap(), Err(CollectiveError::Taken { rank: 1 })));
            assert!(matches!(join(&wrong_token, 2, 3, long()), Err(CollectiveError::Gone)));
            assert!(matches!(join(&address, 1, 3, long()), Err(CollectiveError::Taken { rank: 1 })));
            assert!(matches!(join(&address, 3, 3, long()), Err(CollectiveError::Rank { rank: 3, .. })));
            assert!(matches!(join(&address, 0, 3, long()), Err(CollectiveError::Rank { rank: 0, .. })));
            let other = join(&address, 3, 4, long());
            assert!(matches!(other, Err(CollectiveError::OtherWorldSize { ours: 4, theirs: 3 })));
            assert!(!first.is_finished() && second.try_recv().is_err());
            let mut third = join(&address, 2, 3, long()).unwrap();
            let (mut first, mut second) = (first.join().unwrap().unwrap(), second.recv().unwrap().unwrap());
            scope.spawn(move || first.barrier().unwrap());
            scope.spawn(move || second.barrier().unwrap());
            third.barrier().unwrap();
        });
        drop(silent);
        let gone = join(&address, 1, 3, long());
        assert!(matches!(gone, Err(CollectiveError::Gone)), "{transport:?}: {:?}", gone.err());
    }
}

/// There are more silent connections than rank 0 keeps at a time.
#[test]
fn a_rank_joins_despite_any_number_of_silent_connections() {
    let lead = lead(Transport::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST)), 2, long()).unwrap();
    let address = lead.address();
    let LeaderLocation::Tcp(socket) = GroupAddress::decode(&address).unwrap().location else {
        panic!("not over TCP")
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| lead.wait());
        let silent: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(socket).unwrap()).collect();
        // This is much sooner than the time after which silent connections are closed.
        let since = Instant::now();
        let mut second = join(&address, 1, 2, long()).expect("the oldest silent connections are closed");
        assert!(since.elapsed() < HELLO_TIMEOUT, "{:?}", since.elapsed());
        let mut first = first.join().unwrap().unwrap();
        scope.spawn(move || first.barrier().unwrap());
        second.barrier().unwrap();
        drop(silent);
    });
}

/// The rank that has not come is named. On a busy machine rank 1 may not have come by a short
/// deadline either, so the test tries longer ones.
#[test]
fn an_incomplete_group_ends_at_the_deadline() {
    for transport in transports() {
        let mut deadline = Duration::from_millis(200);
        while named_without_rank_2(transport, deadline) == 1 {
            assert!(deadline < long(), "rank 1 is named although it has come");
            deadline *= 4;
        }
    }
}

/// Forms a group of three in which rank 2 never comes. Returns the rank that rank 0 names at the
/// deadline.
fn named_without_rank_2(transport: Transport, deadline: Duration) -> usize {
    let lead = lead(transport, 3, deadline).unwrap();
    let address = lead.address();
    thread::scope(|scope| {
        let other = scope.spawn(|| join(&address, 1, 3, deadline));
        let error = lead.wait().err().unwrap();
        assert!(other.join().unwrap().is_err());
        match error {
            CollectiveError::TimedOut { operation: Operation::Rendezvous, rank: rank @ (1 | 2), .. } => rank,
            // Rank 1 may have reached its own deadline a moment before.
            CollectiveError::Closed { rank: 1 } => 1,
            other => panic!("{other}"),
        }
    })
}

#[test]
fn impossible_groups_are_refused() {
    for transport in transports() {
        for world_size in [0, MAX_WORLD_SIZE + 1] {
            assert!(matches!(lead(transport, world_size, long()), Err(CollectiveError::WorldSize { .. })));
        }
    }
    assert!(matches!(join(b"nothing", 1, 2, long()), Err(CollectiveError::Address)));
    let any = Transport::Tcp(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    assert!(matches!(lead(any, 2, long()), Err(CollectiveError::Unspecified(_))));
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let address =
        GroupAddress { token: GroupToken::random().unwrap(), location: LeaderLocation::Tcp(nobody) }.encode();
    assert!(matches!(join(&address, 1, 2, long()), Err(CollectiveError::Gone)));
    if cfg!(target_os = "linux") {
        // This open file of the process is not the memory of a group.
        let location = LeaderLocation::Shm { process: std::process::id(), descriptor: 0 };
        let address = GroupAddress { token: GroupToken::random().unwrap(), location }.encode();
        assert!(join(&address, 1, 2, long()).is_err());
    }
}
