//! The connections of each peer, of which none may take all places or all time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of connections of one peer to a socket.
pub(super) const MAX_PER_PEER: usize = 16;

/// The peers that are connected to a socket.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<HashMap<IpAddr, Peer>>);

#[derive(Debug, Default)]
struct Peer {
    connections: usize,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Peers {
    /// Takes a place for a connection of a peer. Returns `None` if the peer has too many.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<PeerPlace> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = peers.entry(address).or_default();
        if peer.connections >= MAX_PER_PEER {
            return None;
        }
        peer.connections += 1;
        Some(PeerPlace { peers: self.clone(), address, turn: peer.turn.clone() })
    }
}

/// The place of a connection. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct PeerPlace {
    peers: Arc<Peers>,
    address: IpAddr,
    /// Locked by the connection of this peer that is served expensive requests now.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for PeerPlace {
    fn drop(&mut self) {
        let mut peers = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(peer) = peers.get_mut(&self.address) else { return };
        peer.connections -= 1;
        if peer.connections == 0 {
            peers.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_a_bounded_number_of_places() {
        let (peers, one) = (Arc::new(Peers::default()), IpAddr::from([10, 0, 0, 1]));
        let mut places: Vec<_> = (0..MAX_PER_PEER).map(|_| peers.enter(one).unwrap()).collect();
        assert!(peers.enter(one).is_none());
        let other = peers.enter(IpAddr::from([10, 0, 0, 2])).unwrap();
        assert!(!Arc::ptr_eq(&other.turn, &places[0].turn) && Arc::ptr_eq(&places[1].turn, &places[0].turn));
        places.pop();
        assert!(peers.enter(one).is_some());
        drop((places, other));
        assert!(peers.0.lock().unwrap().is_empty(), "peers that have left take no memory");
    }
}
