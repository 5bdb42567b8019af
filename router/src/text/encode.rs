//! Encoding away from the async threads, in turns and in bounded memory.
//!
//! The library needs about a hundred bytes of memory for each byte of a text. A long text is therefore cut at places that do
//! not change its tokens ([`Cuts`](super::cuts::Cuts)), and its pieces are encoded one after the other. Short texts have
//! threads of their own and never wait for long ones. Long texts take turns after each piece, so that none waits for the
//! end of another. A text that cannot be cut is one piece; of the large pieces only one is encoded at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::cuts::Cut;
use super::guard::Rendered;
use super::tokenizer::{Encoded, Specials, TextError, Tokenizer};

/// Bytes of a piece at least; a text of at most two of them is short and is not cut.
const PIECE: usize = 32 << 10;
/// A piece of more bytes is encoded alone.
const LARGE: usize = 8 * PIECE;

/// Who may encode at the same time.
#[derive(Debug)]
pub(super) struct Lanes {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Lanes {
    pub(super) fn new(workers: usize) -> Self {
        let lane = |places: usize| Arc::new(Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS)));
        Lanes { short: lane(workers), long: lane(workers), large: lane(1) }
    }
}

/// A part of a text that is encoded by itself: `text[from.begin..to]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    from: Cut,
    to: usize,
}

impl Tokenizer {
    /// Encodes away from the async threads.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub async fn encode(&self, text: impl Into<Rendered>, specials: Specials) -> Result<Encoded, TextError> {
        self.encode_last(text, specials, usize::MAX).await
    }

    /// Encodes away from the async threads at least the end of a text: its last `keep` tokens, or all of them if there are
    /// fewer. What comes before is not looked at if the text can be cut.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub async fn encode_last(
        &self,
        text: impl Into<Rendered>,
        specials: Specials,
        keep: usize,
    ) -> Result<Encoded, TextError> {
        let text = Arc::new(text.into());
        let whole = Piece { from: Cut::default(), to: text.text.len() };
        if text.text.len() <= 2 * PIECE {
            return self.turn(&self.lanes().short, text, whole, Some(specials)).await;
        }
        let Some((before, after)) = self.around(specials) else {
            return self.turn(&self.lanes().long, text, whole, Some(specials)).await;
        };
        let (tokenizer, shared) = (self.clone(), text.clone());
        let mut pieces = blocking(move || Ok(tokenizer.pieces(&shared.text, PIECE))).await?;
        if keep == usize::MAX {
            let mut all = before;
            for piece in pieces {
                all.append(self.turn(&self.lanes().long, text.clone(), piece, None).await?);
            }
            all.append(after);
            return Ok(all);
        }
        // From the end on. The tokens of a piece go before those of the pieces after it.
        let mut parts = Vec::new();
        let mut count = after.ids.len();
        while count < keep {
            let Some(piece) = pieces.pop() else { break };
            let part = self.turn(&self.lanes().long, text.clone(), piece, None).await?;
            count += part.ids.len();
            parts.push(part);
        }
        let mut end = if pieces.is_empty() { before } else { Encoded::default() };
        parts.into_iter().rev().for_each(|part| end.append(part));
        end.append(after);
        Ok(end)
    }

    /// Encodes a piece when it is its turn; `around` for a whole text.
    async fn turn(
        &self,
        lane: &Arc<Semaphore>,
        text: Arc<Rendered>,
        piece: Piece,
        around: Option<Specials>,
    ) -> Result<Encoded, TextError> {
        let closed = |_| TextError::Encode("worker has stopped".into());
        let large = match piece.to - piece.from.begin > LARGE {
            true => Some(self.lanes().large.clone().acquire_owned().await.map_err(closed)?),
            false => None,
        };
        let place = lane.clone().acquire_owned().await.map_err(closed)?;
        let tokenizer = self.clone();
        blocking(move || {
            // Held by the work itself: a client that leaves does not free a worker that is still busy.
            let _held = (place, large);
            match around {
                Some(specials) => tokenizer.encode_rendered_now(&text, specials),
                None => tokenizer.encode_piece(&text, piece),
            }
        })
        .await
    }

    fn encode_piece(&self, text: &Rendered, Piece { from, to }: Piece) -> Result<Encoded, TextError> {
        let first = text.literal.partition_point(|range| range.end <= from.begin);
        let inside = text.literal[first..].iter().take_while(|range| range.start < to);
        let literal: Vec<_> = inside
            .map(|range| range.start.max(from.begin) - from.begin..range.end.min(to) - from.begin)
            .collect();
        let mut encoded = self.encode_part(&text.text[from.begin..to], &literal, false)?;
        from.shift(&mut encoded);
        Ok(encoded)
    }

    /// The pieces of a text, in order, each of at least so many bytes but the last one.
    fn pieces(&self, text: &str, least: usize) -> Vec<Piece> {
        let cuts = self.cuts();
        let (mut pieces, mut from) = (Vec::new(), Cut::default());
        while let Some(cut) = cuts.first(text, from.begin + least) {
            pieces.push(Piece { from, to: cut.end });
            from = cut;
        }
        pieces.push(Piece { from, to: text.len() });
        pieces
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TextError> + Send + 'static,
) -> Result<T, TextError> {
    let stopped = |_| TextError::Encode("worker has stopped".into());
    tokio::task::spawn_blocking(work).await.map_err(stopped)?
}

#[cfg(test)]
mod tests;
