//! The handshake that authenticates the router and a rank on another machine to each other before
//! the first frame.
//!
//! ```text
//! router → rank   challenge   magic, version, nonce
//! rank → router   hello       magic, version, rank, world size, nonce, proof
//! router → rank   verdict     code, number, proof
//! ```
//!
//! A proof is an HMAC-SHA256 with the shared secret over all bytes exchanged so far and the role of
//! the sender. Each side chooses a nonce, so a recorded handshake proves nothing later. The rank
//! proves itself first, so a stranger that connects gets no proof on which it could try secrets.
//! The messages after the handshake are neither encrypted nor authenticated: the network between
//! the machines must be trusted.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The first bytes that each side sends.
const MAGIC: [u8; 8] = *b"millrace";

/// Length of the version, as text padded with zeros. The ranks of a group compute together, so
/// their versions must be equal.
const VERSION: usize = 16;

/// Length of magic and version. They are at the same place in all versions.
const PREFIX: usize = MAGIC.len() + VERSION;

const NONCE: usize = 32;
const PROOF: usize = 32;
const CHALLENGE: usize = PREFIX + NONCE;
/// Rank and world size.
const CLAIM: usize = 4 + 4;
/// A hello without its proof.
const HELLO_BODY: usize = PREFIX + CLAIM + NONCE;
const HELLO: usize = HELLO_BODY + PROOF;
/// A verdict without its proof: code and number.
const VERDICT_BODY: usize = 1 + 4;
const VERDICT: usize = VERDICT_BODY + PROOF;

/// Codes of a verdict.
const WELCOME: u8 = 0;
#[cfg(any(test, feature = "tokio"))]
const WRONG_SECRET: u8 = 1;
const WRONG_WORLD: u8 = 2;
const WRONG_RANK: u8 = 3;
const TAKEN: u8 = 4;

/// The secret that the machines of a group share.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// SHA-256 of the secret, which may have any length.
    key: [u8; 32],
}

/// The secret is too short and could be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret has {0} bytes; at least {min} are needed", min = Secret::MIN_LENGTH)]
pub struct ShortSecret(pub usize);

impl Secret {
    /// Minimum length of a secret in bytes.
    pub const MIN_LENGTH: usize = 16;

    /// Creates a secret from these bytes.
    ///
    /// # Errors
    /// [`ShortSecret`] if there are fewer than [`MIN_LENGTH`](Self::MIN_LENGTH).
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, ShortSecret> {
        let bytes = bytes.as_ref();
        if bytes.len() < Self::MIN_LENGTH {
            return Err(ShortSecret(bytes.len()));
        }
        Ok(Secret { key: Sha256::digest(bytes).into() })
    }

    fn sign(&self, role: &[u8], messages: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC pads a key with zeros to a whole block.
        let mut key = [0; 64];
        key[..32].copy_from_slice(&self.key);
        let mut mac = Hmac::<Sha256>::new(&key.into());
        mac.update(role);
        messages.iter().for_each(|message| mac.update(message));
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why one side refuses the other. The texts read the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The other side does not use this protocol.
    #[error("the other side is not a part of Millrace")]
    Stranger,
    /// The versions differ.
    #[error("the other side runs version {theirs}, and this one {ours}; all machines must run the same")]
    Version {
        /// Version of this side.
        ours: String,
        /// Version of the other side.
        theirs: String,
    },
    /// A proof is wrong.
    #[error("the two sides have different secrets")]
    Secret,
    /// The world sizes differ.
    #[error(
        "the leader's group has {leader} ranks, and the rank expects {told}; --num-shard must be the same"
    )]
    WorldSize {
        /// World size of the leader.
        leader: usize,
        /// World size of the rank.
        told: usize,
    },
    /// The rank does not belong to another machine than the leader.
    #[error(
        "rank {rank} does not belong to another machine; --nnodes must be the same and each --node-rank different"
    )]
    Rank {
        /// The rank that the other side claims to be.
        rank: usize,
    },
    /// Another process has connected as this rank.
    #[error("rank {rank} is connected already; each machine needs a --node-rank of its own")]
    Taken {
        /// The rank that the other side claims to be.
        rank: usize,
    },
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection ended, or no data came for too long. Another attempt may succeed.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] io::Error),
    /// One side refuses the other.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The system cannot provide random numbers.
    #[error("cannot get random numbers from the system: {0}")]
    Random(getrandom::Error),
}

/// The router's side of one handshake.
#[cfg(any(test, feature = "tokio"))]
struct RouterHandshake {
    challenge: [u8; CHALLENGE],
}

#[cfg(any(test, feature = "tokio"))]
impl RouterHandshake {
    fn new() -> Result<Self, HandshakeError> {
        let mut challenge = [0; CHALLENGE];
        challenge[..PREFIX].copy_from_slice(&prefix());
        challenge[PREFIX..].copy_from_slice(&nonce()?);
        Ok(RouterHandshake { challenge })
    }

    /// Checks a hello. Returns the verdict to send, and the rank if it is admitted.
    fn answer(
        &self,
        hello: &[u8; HELLO],
        secret: &Secret,
        world_size: usize,
        admit: impl FnOnce(usize) -> Result<(), Refusal>,
    ) -> ([u8; VERDICT], Result<usize, Refusal>) {
        let (body, proof) = hello.split_at(HELLO_BODY);
        if secret.sign(b"rank", &[&self.challenge, body]).verify_slice(proof).is_err() {
            // A side that does not know the secret gets no proof.
            let mut verdict = [0; VERDICT];
            verdict[0] = WRONG_SECRET;
            return (verdict, Err(Refusal::Secret));
        }
        let (rank, claimed) = (number(&body[PREFIX..]), number(&body[PREFIX + 4..]));
        let outcome = match claimed == world_size {
            true => admit(rank).map(|()| rank),
            false => Err(Refusal::WorldSize { leader: world_size, told: claimed }),
        };
        let code = match &outcome {
            Ok(_) => WELCOME,
            Err(Refusal::WorldSize { .. }) => WRONG_WORLD,
            Err(Refusal::Taken { .. }) => TAKEN,
            Err(_) => WRONG_RANK,
        };
        let mut verdict = [0; VERDICT];
        verdict[0] = code;
        verdict[1..VERDICT_BODY].copy_from_slice(&bytes(world_size));
        let proof = secret.sign(b"router", &[&self.challenge, hello, &verdict[..VERDICT_BODY]]);
        verdict[VERDICT_BODY..].copy_from_slice(&proof.finalize().into_bytes());
        (verdict, outcome)
    }
}

/// The rank's side of one handshake, after its hello.
struct RankHandshake<'s> {
    challenge: [u8; CHALLENGE],
    hello: [u8; HELLO],
    secret: &'s Secret,
    rank: usize,
    world_size: usize,
}

impl<'s> RankHandshake<'s> {
    fn new(
        challenge: [u8; CHALLENGE],
        secret: &'s Secret,
        rank: usize,
        world_size: usize,
    ) -> Result<Self, HandshakeError> {
        let mut hello = [0; HELLO];
        hello[..PREFIX].copy_from_slice(&prefix());
        hello[PREFIX..][..4].copy_from_slice(&bytes(rank));
        hello[PREFIX + 4..][..4].copy_from_slice(&bytes(world_size));
        hello[PREFIX + CLAIM..HELLO_BODY].copy_from_slice(&nonce()?);
        let proof = secret.sign(b"rank", &[&challenge, &hello[..HELLO_BODY]]);
        hello[HELLO_BODY..].copy_from_slice(&proof.finalize().into_bytes());
        Ok(RankHandshake { challenge, hello, secret, rank, world_size })
    }

    /// Checks the verdict of the router.
    fn check(&self, verdict: &[u8; VERDICT]) -> Result<(), Refusal> {
        let (body, proof) = verdict.split_at(VERDICT_BODY);
        let signed = self.secret.sign(b"router", &[&self.challenge, &self.hello, body]);
        if signed.verify_slice(proof).is_err() {
            return Err(Refusal::Secret);
        }
        let RankHandshake { rank, world_size, .. } = *self;
        match body[0] {
            WELCOME => Ok(()),
            WRONG_WORLD => Err(Refusal::WorldSize { leader: number(&body[1..]), told: world_size }),
            TAKEN => Err(Refusal::Taken { rank }),
            WRONG_RANK => Err(Refusal::Rank { rank }),
            _ => Err(Refusal::Stranger),
        }
    }
}

/// Runs the rank's side of the handshake, blocking. The caller sets timeouts on the stream.
///
/// # Errors
/// The other side is not a router of this group, or does not answer.
pub fn introduce(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    rank: usize,
    world_size: usize,
) -> Result<(), HandshakeError> {
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge[..PREFIX])?;
    if let Err(refusal) = check_prefix(&challenge) {
        // The prefix tells the router this version. An error here changes nothing.
        let _ = stream.write_all(&prefix());
        return Err(refusal.into());
    }
    stream.read_exact(&mut challenge[PREFIX..])?;
    let rank_side = RankHandshake::new(challenge, secret, rank, world_size)?;
    stream.write_all(&rank_side.hello)?;
    stream.flush()?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict)?;
    Ok(rank_side.check(&verdict)?)
}

/// Runs the router's side of the handshake. Returns the rank at the other end if `admit` accepts
/// it. The caller limits the time.
///
/// # Errors
/// The other side is not a rank of this group, is not admitted, or does not answer.
#[cfg(feature = "tokio")]
pub async fn receive(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    secret: &Secret,
    world_size: usize,
    admit: impl FnOnce(usize) -> Result<(), Refusal>,
) -> Result<usize, HandshakeError> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let router_side = RouterHandshake::new()?;
    stream.write_all(&router_side.challenge).await?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello[..PREFIX]).await?;
    check_prefix(&hello)?;
    stream.read_exact(&mut hello[PREFIX..]).await?;
    let (verdict, outcome) = router_side.answer(&hello, secret, world_size, admit);
    stream.write_all(&verdict).await?;
    stream.flush().await?;
    Ok(outcome?)
}

fn prefix() -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix[..MAGIC.len()].copy_from_slice(&MAGIC);
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let length = version.len().min(VERSION);
    prefix[MAGIC.len()..][..length].copy_from_slice(&version[..length]);
    prefix
}

fn check_prefix(message: &[u8]) -> Result<(), Refusal> {
    let (theirs, ours) = (&message[..PREFIX], prefix());
    if theirs[..MAGIC.len()] != MAGIC {
        return Err(Refusal::Stranger);
    }
    if theirs == ours {
        return Ok(());
    }
    // The text goes into a log, so it is escaped.
    let text = |prefix: &[u8]| {
        let version = String::from_utf8_lossy(&prefix[MAGIC.len()..]);
        version.trim_end_matches('\0').escape_default().to_string()
    };
    Err(Refusal::Version { ours: text(&ours), theirs: text(theirs) })
}

fn nonce() -> Result<[u8; NONCE], HandshakeError> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(HandshakeError::Random)?;
    Ok(nonce)
}

/// Encodes a rank or a world size. A number above the maximum of u32 becomes that maximum, which no
/// group has.
fn bytes(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().take(4).rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
}
