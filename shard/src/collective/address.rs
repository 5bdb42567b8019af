//! What the other ranks need to find rank 0, as bytes that the router passes on without a look inside.

use std::net::SocketAddr;

use super::CollectiveError;

/// The first byte: where, and the version of what follows.
const SHM: u8 = 1;
const TCP: u8 = 2;

/// A group's random name. Who knows it was told by rank 0.
#[derive(Clone, Copy)]
pub(super) struct Token([u8; Token::LEN]);

impl Token {
    pub(super) const LEN: usize = 16;

    pub(super) fn random() -> Result<Token, CollectiveError> {
        let mut bytes = [0; Token::LEN];
        getrandom::fill(&mut bytes).map_err(CollectiveError::Random)?;
        Ok(Token(bytes))
    }

    pub(super) fn bytes(&self) -> [u8; Token::LEN] {
        self.0
    }

    /// Takes the same time wherever the difference lies, so that a token cannot be guessed byte by byte.
    pub(super) fn matches(&self, other: &[u8; Token::LEN]) -> bool {
        self.0.iter().zip(other).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

/// Where rank 0 waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// An open file of rank 0.
    Shm { process: u32, descriptor: u32 },
    /// A listening socket of rank 0.
    Tcp(SocketAddr),
}

pub(super) struct Address {
    pub(super) token: Token,
    pub(super) place: Place,
}

impl Address {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, place) = match self.place {
            Place::Shm { process, descriptor } => {
                (SHM, [process.to_le_bytes(), descriptor.to_le_bytes()].concat())
            }
            Place::Tcp(socket) => (TCP, socket.to_string().into_bytes()),
        };
        [&[kind][..], &self.token.0, &place].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Address, CollectiveError> {
        Self::parse(bytes).ok_or(CollectiveError::Address)
    }

    fn parse(bytes: &[u8]) -> Option<Address> {
        let (kind, rest) = bytes.split_first()?;
        let (token, place) = rest.split_first_chunk()?;
        let place = match *kind {
            SHM => {
                let (process, descriptor) = place.split_first_chunk()?;
                Place::Shm {
                    process: u32::from_le_bytes(*process),
                    descriptor: u32::from_le_bytes(descriptor.try_into().ok()?),
                }
            }
            TCP => Place::Tcp(std::str::from_utf8(place).ok()?.parse().ok()?),
            _ => return None,
        };
        Some(Address { token: Token(*token), place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_bytes() {
        let places = [
            Place::Shm { process: 4_000_000_000, descriptor: 7 },
            Place::Tcp("10.1.2.3:4567".parse().unwrap()),
            Place::Tcp("[fe80::1]:1".parse().unwrap()),
        ];
        for place in places {
            let token = Token::random().unwrap();
            let bytes = Address { token, place }.encode();
            let address = Address::decode(&bytes).unwrap();
            assert!(address.token.matches(&token.bytes()));
            assert_eq!(address.place, place);
            for length in 0..bytes.len() {
                // A socket address may lose its last digit and still be one.
                let cut = Address::decode(&bytes[..length]);
                assert!(cut.is_err() || matches!(place, Place::Tcp(_)), "{length} of {bytes:?}");
            }
        }
        assert!(Address::decode(b"tcp://10.1.2.3:4567 and more").is_err());
    }

    #[test]
    fn tokens_differ() {
        assert!(!Token::random().unwrap().matches(&Token::random().unwrap().bytes()));
    }
}
