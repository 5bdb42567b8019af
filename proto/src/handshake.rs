//! How the router and a rank on another machine make sure of each other before the first frame.
//!
//! ```text
//! router → rank   challenge   magic, version, nonce
//! rank → router   hello       magic, version, rank, world size, nonce, proof
//! router → rank   verdict     code, number, proof
//! ```
//!
//! A proof is an HMAC-SHA256 under the secret that both were given, over all that was said so far and who says it. Each
//! side chooses a nonce, so what was recorded once proves nothing later; the rank proves itself first, so a stranger that
//! connects gets nothing to try secrets on. What follows is neither encrypted nor authenticated: the network between the
//! machines must be trusted.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The first bytes of either side.
const MAGIC: [u8; 8] = *b"millrace";

/// The version as text, filled up with zeros. Ranks of one group compute together, so it must be the very same.
const VERSION: usize = 16;

/// Magic and version: where these are in a message is the same in all versions.
const PREFIX: usize = MAGIC.len() + VERSION;

const NONCE: usize = 32;
const PROOF: usize = 32;
const CHALLENGE: usize = PREFIX + NONCE;
/// Rank and world size.
const CLAIM: usize = 4 + 4;
/// A hello without its proof.
const SAID: usize = PREFIX + CLAIM + NONCE;
const HELLO: usize = SAID + PROOF;
/// Code and number.
const RULING: usize = 1 + 4;
const VERDICT: usize = RULING + PROOF;

/// Codes of a verdict.
const WELCOME: u8 = 0;
const WRONG_SECRET: u8 = 1;
const WRONG_WORLD: u8 = 2;
const WRONG_RANK: u8 = 3;
const TAKEN: u8 = 4;

/// What the machines of a group were given to know each other by.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// SHA-256 of what was given, which may be of any length.
    key: [u8; 32],
}

/// A secret that could be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret has {0} bytes; at least {min} are needed", min = Secret::SHORTEST)]
pub struct ShortSecret(pub usize);

impl Secret {
    /// The fewest bytes that a secret may have.
    pub const SHORTEST: usize = 16;

    /// A secret of these bytes.
    ///
    /// # Errors
    /// If there are fewer than [`SHORTEST`](Self::SHORTEST).
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, ShortSecret> {
        let bytes = bytes.as_ref();
        if bytes.len() < Self::SHORTEST {
            return Err(ShortSecret(bytes.len()));
        }
        Ok(Secret { key: Sha256::digest(bytes).into() })
    }

    fn sign(&self, who: &[u8], said: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC fills a key up to a block with zeros.
        let mut key = [0; 64];
        key[..32].copy_from_slice(&self.key);
        let mut mac = Hmac::<Sha256>::new(&key.into());
        mac.update(who);
        said.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why the two do not work together. The texts read the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The other side speaks something else.
    #[error("the other side is no part of Millrace")]
    Stranger,
    /// Versions differ.
    #[error("the other side runs version {theirs}, and this one {ours}; all machines must run the same")]
    Version {
        /// This side's.
        ours: String,
        /// The other's.
        theirs: String,
    },
    /// A proof is wrong.
    #[error("the two sides were given different secrets")]
    Secret,
    /// Groups of different sizes.
    #[error(
        "the leader's group has {leader} ranks, and the rank was told {told}; --num-shard must be the same"
    )]
    WorldSize {
        /// The leader's.
        leader: usize,
        /// What the rank was told.
        told: usize,
    },
    /// A rank that does not belong to another machine.
    #[error(
        "rank {rank} is none of the other machines'; --nnodes must be the same, and each --node-rank another"
    )]
    Rank {
        /// Whom it takes itself for.
        rank: usize,
    },
    /// Another process has come as this rank.
    #[error("rank {rank} has come already; each machine needs a --node-rank of its own")]
    Taken {
        /// Whom it takes itself for.
        rank: usize,
    },
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection ended, or was silent for too long. Another attempt may succeed.
    #[error("the connection failed before the two sides knew each other: {0}")]
    Io(#[from] io::Error),
    /// The sides do not fit.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The system has no random numbers to give.
    #[error("random numbers of the system: {0}")]
    Random(getrandom::Error),
}

/// The router's side of one handshake.
struct Host {
    challenge: [u8; CHALLENGE],
}

impl Host {
    fn new() -> Result<Self, HandshakeError> {
        let mut challenge = [0; CHALLENGE];
        challenge[..PREFIX].copy_from_slice(&prefix());
        challenge[PREFIX..].copy_from_slice(&nonce()?);
        Ok(Host { challenge })
    }

    /// What to answer to a hello, and the rank that is welcome.
    fn judge(
        &self,
        hello: &[u8; HELLO],
        secret: &Secret,
        world_size: usize,
        admit: impl FnOnce(usize) -> Result<(), Refusal>,
    ) -> ([u8; VERDICT], Result<usize, Refusal>) {
        let (said, proof) = hello.split_at(SAID);
        if secret.sign(b"rank", &[&self.challenge, said]).verify_slice(proof).is_err() {
            // Who does not know the secret gets nothing that was made with it.
            let mut verdict = [0; VERDICT];
            verdict[0] = WRONG_SECRET;
            return (verdict, Err(Refusal::Secret));
        }
        let (rank, told) = (number(&said[PREFIX..]), number(&said[PREFIX + 4..]));
        let judged = match told == world_size {
            true => admit(rank).map(|()| rank),
            false => Err(Refusal::WorldSize { leader: world_size, told }),
        };
        let code = match &judged {
            Ok(_) => WELCOME,
            Err(Refusal::WorldSize { .. }) => WRONG_WORLD,
            Err(Refusal::Taken { .. }) => TAKEN,
            Err(_) => WRONG_RANK,
        };
        let mut verdict = [0; VERDICT];
        verdict[0] = code;
        verdict[1..RULING].copy_from_slice(&bytes(world_size));
        let proof = secret.sign(b"router", &[&self.challenge, hello, &verdict[..RULING]]);
        verdict[RULING..].copy_from_slice(&proof.finalize().into_bytes());
        (verdict, judged)
    }
}

/// A rank's side of one handshake, after its hello.
struct Guest<'s> {
    challenge: [u8; CHALLENGE],
    hello: [u8; HELLO],
    secret: &'s Secret,
    rank: usize,
    world_size: usize,
}

impl<'s> Guest<'s> {
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
        hello[PREFIX + CLAIM..SAID].copy_from_slice(&nonce()?);
        let proof = secret.sign(b"rank", &[&challenge, &hello[..SAID]]);
        hello[SAID..].copy_from_slice(&proof.finalize().into_bytes());
        Ok(Guest { challenge, hello, secret, rank, world_size })
    }

    fn hear(&self, verdict: &[u8; VERDICT]) -> Result<(), Refusal> {
        let (ruling, proof) = verdict.split_at(RULING);
        let signed = self.secret.sign(b"router", &[&self.challenge, &self.hello, ruling]);
        if signed.verify_slice(proof).is_err() {
            return Err(Refusal::Secret);
        }
        let Guest { rank, world_size, .. } = *self;
        match ruling[0] {
            WELCOME => Ok(()),
            WRONG_WORLD => Err(Refusal::WorldSize { leader: number(&ruling[1..]), told: world_size }),
            TAKEN => Err(Refusal::Taken { rank }),
            WRONG_RANK => Err(Refusal::Rank { rank }),
            _ => Err(Refusal::Stranger),
        }
    }
}

/// A rank's side, blocking. The caller sets time limits on the stream.
///
/// # Errors
/// If the router is none, was given something else, or does not answer.
pub fn introduce(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    rank: usize,
    world_size: usize,
) -> Result<(), HandshakeError> {
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge[..PREFIX])?;
    if let Err(refusal) = check_prefix(&challenge) {
        // The router learns of the other version too. That the connection fails here changes nothing.
        let _ = stream.write_all(&prefix());
        return Err(refusal.into());
    }
    stream.read_exact(&mut challenge[PREFIX..])?;
    let guest = Guest::new(challenge, secret, rank, world_size)?;
    stream.write_all(&guest.hello)?;
    stream.flush()?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict)?;
    Ok(guest.hear(&verdict)?)
}

/// The router's side: the rank at the other end, if `admit` takes it. The caller limits the time.
///
/// # Errors
/// If it is no rank, was given something else, is not admitted, or does not answer.
#[cfg(feature = "tokio")]
pub async fn receive(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    secret: &Secret,
    world_size: usize,
    admit: impl FnOnce(usize) -> Result<(), Refusal>,
) -> Result<usize, HandshakeError> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let host = Host::new()?;
    stream.write_all(&host.challenge).await?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello[..PREFIX]).await?;
    check_prefix(&hello)?;
    stream.read_exact(&mut hello[PREFIX..]).await?;
    let (verdict, judged) = host.judge(&hello, secret, world_size, admit);
    stream.write_all(&verdict).await?;
    stream.flush().await?;
    Ok(judged?)
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
    // It goes into a log.
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

/// What a group can be asked for is far below four thousand million; a number that is not becomes one that nobody has.
fn bytes(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().take(4).rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
}
