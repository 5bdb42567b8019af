//! Length-prefixed frames, blocking and (with the feature `tokio`) asynchronous.

use std::io::{self, Read, Write};

use prost::Message;

/// Size in bytes of the largest frame that either side accepts. The scheduler plans every step so
/// that the step and its answer fit.
pub const MAX_FRAME: usize = 64 << 20;

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer closed the connection between two frames.
    #[error("the connection was closed")]
    Closed,
    /// The socket failed, or was closed inside a frame.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The length exceeds [`MAX_FRAME`].
    #[error("a frame of {0} bytes is over the limit of {MAX_FRAME}")]
    TooLarge(usize),
    /// The bytes are not a message of the expected type.
    #[error("malformed message: {0}")]
    Malformed(#[from] prost::DecodeError),
}

/// Number of bytes of a message, without the length of the frame.
pub fn encoded_len(message: &impl Message) -> usize {
    message.encoded_len()
}

/// Encodes one message as a frame: its length, then the message.
pub fn encode(message: &impl Message) -> Result<Vec<u8>, FrameError> {
    let len = message.encoded_len();
    if len > MAX_FRAME {
        return Err(FrameError::TooLarge(len));
    }
    let mut bytes = Vec::with_capacity(4 + len);
    bytes.extend_from_slice(&(len as u32).to_le_bytes());
    message.encode_raw(&mut bytes);
    Ok(bytes)
}

/// Writes one message as one frame.
pub fn write(to: &mut impl Write, message: &impl Message) -> Result<(), FrameError> {
    to.write_all(&encode(message)?)?;
    to.flush()?;
    Ok(())
}

/// Reads one message, and blocks until it is complete. The buffer `scratch` is reused between
/// calls.
pub fn read<M: Message + Default>(from: &mut impl Read, scratch: &mut Vec<u8>) -> Result<M, FrameError> {
    let mut prefix = [0; 4];
    match from.read(&mut prefix)? {
        0 => return Err(FrameError::Closed),
        n => from.read_exact(&mut prefix[n..])?,
    }
    scratch.resize(checked_len(prefix)?, 0);
    from.read_exact(scratch)?;
    Ok(M::decode(scratch.as_slice())?)
}

fn checked_len(prefix: [u8; 4]) -> Result<usize, FrameError> {
    match u32::from_le_bytes(prefix) as usize {
        len if len > MAX_FRAME => Err(FrameError::TooLarge(len)),
        len => Ok(len),
    }
}

#[cfg(feature = "tokio")]
mod asynchronous {
    use prost::Message;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

    use super::{FrameError, checked_len, encode};

    /// Writes one message as one frame. Not cancel safe: a dropped future may leave an incomplete
    /// frame.
    pub async fn write_async(
        to: &mut (impl AsyncWrite + Unpin),
        message: &impl Message,
    ) -> Result<(), FrameError> {
        to.write_all(&encode(message)?).await?;
        Ok(())
    }

    /// Reads one message. Not cancel safe: the reading half needs a task of its own.
    pub async fn read_async<M: Message + Default>(
        from: &mut (impl AsyncRead + Unpin),
        scratch: &mut Vec<u8>,
    ) -> Result<M, FrameError> {
        let mut prefix = [0; 4];
        match from.read(&mut prefix).await? {
            0 => return Err(FrameError::Closed),
            n => from.read_exact(&mut prefix[n..]).await?,
        };
        scratch.resize(checked_len(prefix)?, 0);
        from.read_exact(scratch).await?;
        Ok(M::decode(scratch.as_slice())?)
    }
}

#[cfg(feature = "tokio")]
pub use asynchronous::{read_async, write_async};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Row, Step, ToShard, to_shard};

    fn step(id: u64, rows: Vec<(u32, u32, u32, bool)>) -> ToShard {
        let rows = rows
            .into_iter()
            .map(|(slot, start, count, sample)| Row {
                slot,
                start,
                count,
                sample,
                new_blocks: vec![slot; count as usize % 5],
                allowed: vec![start; slot as usize % 3],
                score: sample.then_some(count),
                mask_follows: !sample,
                save_state: sample.then_some(start),
                drafts: vec![count; slot as usize % 4],
                keep_state: sample.then_some(slot),
                restore_state: (!sample).then_some(count),
                model_drafts: slot % 2,
            })
            .collect();
        ToShard { message: Some(to_shard::Message::Step(Step { id, rows, ..Default::default() })) }
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            steps in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<(u32, u32, u32, bool)>(), 0..6)), 1..5),
            cut in 1usize..40,
        ) {
            struct Dripping<'a>(&'a [u8], usize);
            impl Read for Dripping<'_> {
                fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                    let n = self.1.min(out.len()).min(self.0.len());
                    out[..n].copy_from_slice(&self.0[..n]);
                    self.0 = &self.0[n..];
                    Ok(n)
                }
            }
            let sent: Vec<ToShard> = steps.into_iter().map(|(id, rows)| step(id, rows)).collect();
            let mut wire = Vec::new();
            for message in &sent {
                write(&mut wire, message).unwrap();
            }
            let (mut from, mut scratch) = (Dripping(&wire, cut), Vec::new());
            for message in &sent {
                prop_assert_eq!(&read::<ToShard>(&mut from, &mut scratch).unwrap(), message);
            }
            prop_assert!(matches!(read::<ToShard>(&mut from, &mut scratch), Err(FrameError::Closed)));
        }
    }

    #[test]
    fn a_wrong_length_is_refused_before_allocation() {
        let mut scratch = Vec::new();
        let wire = u32::MAX.to_le_bytes();
        let error = read::<ToShard>(&mut wire.as_slice(), &mut scratch).unwrap_err();
        assert!(matches!(error, FrameError::TooLarge(_)), "{error}");
        assert_eq!(scratch.capacity(), 0);
    }

    #[test]
    fn an_end_inside_a_frame_is_an_io_error() {
        let wire = encode(&step(7, vec![(1, 2, 3, true)])).unwrap();
        let error = read::<ToShard>(&mut &wire[..wire.len() - 1], &mut Vec::new()).unwrap_err();
        assert!(matches!(error, FrameError::Io(_)), "{error}");
    }
}
