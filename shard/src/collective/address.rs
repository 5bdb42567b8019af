//! The address of a group: the bytes by which the other ranks find rank 0. The router passes them
//! on unread.

use std::net::SocketAddr;

use super::CollectiveError;

// The first byte of an address: the transport, and the version of the rest.
const SHM: u8 = 1;
const TCP: u8 = 2;

/// The random token of a group. A process that knows the token got it from rank 0.
#[derive(Clone, Copy)]
pub(super) struct GroupToken([u8; GroupToken::LEN]);

impl GroupToken {
    pub(super) const LEN: usize = 16;

    pub(super) fn random() -> Result<GroupToken, CollectiveError> {
        let mut bytes = [0; GroupToken::LEN];
        getrandom::fill(&mut bytes).map_err(CollectiveError::Random)?;
        Ok(GroupToken(bytes))
    }

    pub(super) fn bytes(&self) -> [u8; GroupToken::LEN] {
        self.0
    }

    /// Compares in constant time, so that a token cannot be guessed byte by byte.
    pub(super) fn matches(&self, other: &[u8; GroupToken::LEN]) -> bool {
        self.0.iter().zip(other).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

/// The place where rank 0 waits for the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaderLocation {
    /// An open file of rank 0.
    Shm { process: u32, descriptor: u32 },
    /// A listening socket of rank 0.
    Tcp(SocketAddr),
}

pub(super) struct GroupAddress {
    pub(super) token: GroupToken,
    pub(super) location: LeaderLocation,
}

impl GroupAddress {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, location) = match self.location {
            LeaderLocation::Shm { process, descriptor } => {
                (SHM, [process.to_le_bytes(), descriptor.to_le_bytes()].concat())
            }
            LeaderLocation::Tcp(socket) => (TCP, socket.to_string().into_bytes()),
        };
        [&[kind][..], &self.token.0, &location].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<GroupAddress, CollectiveError> {
        Self::parse(bytes).ok_or(CollectiveError::Address)
    }

    fn parse(bytes: &[u8]) -> Option<GroupAddress> {
        let (kind, rest) = bytes.split_first()?;
        let (token, location) = rest.split_first_chunk()?;
        let location = match *kind {
            SHM => {
                let (process, descriptor) = location.split_first_chunk()?;
                LeaderLocation::Shm {
                    process: u32::from_le_bytes(*process),
                    descriptor: u32::from_le_bytes(descriptor.try_into().ok()?),
                }
            }
            TCP => LeaderLocation::Tcp(std::str::from_utf8(location).ok()?.parse().ok()?),
            _ => return None,
        };
        Some(GroupAddress { token: GroupToken(*token), location })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_encoding() {
        let locations = [
            LeaderLocation::Shm { process: 4_000_000_000, descriptor: 7 },
            LeaderLocation::Tcp("10.1.2.3:4567".parse().unwrap()),
            LeaderLocation::Tcp("[fe80::1]:1".parse().unwrap()),
        ];
        for location in locations {
            let token = GroupToken::random().unwrap();
            let bytes = GroupAddress { token, location }.encode();
            let address = GroupAddress::decode(&bytes).unwrap();
            assert!(address.token.matches(&token.bytes()));
            assert_eq!(address.location, location);
            for length in 0..bytes.len() {
                // A socket address without its last digit may still be valid.
                let cut = GroupAddress::decode(&bytes[..length]);
                assert!(cut.is_err() || matches!(location, LeaderLocation::Tcp(_)), "{length} of {bytes:?}");
            }
        }
        assert!(GroupAddress::decode(b"tcp://10.1.2.3:4567 and more").is_err());
    }

    #[test]
    fn tokens_differ() {
        assert!(!GroupToken::random().unwrap().matches(&GroupToken::random().unwrap().bytes()));
    }
}
