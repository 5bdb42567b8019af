//! Bounds on the memory of the parsers of all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum memory of the parser of one request in bytes.
const MAX_BYTES_PER_PARSER: usize = 64 << 20;
/// The maximum memory of the parsers of all requests in bytes.
const MAX_BYTES_TOTAL: usize = 1 << 30;

/// Counts the memory of the parsers of all requests. Clones share the counter.
#[derive(Debug, Clone, Default)]
pub(super) struct ParserMemory(Arc<ParserMemoryUse>);

#[derive(Debug, Default)]
struct ParserMemoryUse {
    bytes: AtomicUsize,
    /// The number of parsers.
    parsers: AtomicUsize,
}

impl ParserMemory {
    pub(super) fn share(&self) -> ParserMemoryShare {
        self.0.parsers.fetch_add(1, Ordering::Relaxed);
        ParserMemoryShare { used: self.0.clone(), bytes: 0 }
    }

    /// Returns the number of bytes of all parsers.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

/// The memory of one request's parser. It is subtracted from the counter when this is dropped.
#[derive(Debug)]
pub(super) struct ParserMemoryShare {
    used: Arc<ParserMemoryUse>,
    bytes: usize,
}

impl ParserMemoryShare {
    /// Sets the memory of the parser.
    ///
    /// # Errors
    /// The reason why the request cannot continue: its parser is too large, or all parsers together
    /// are too large and this one is larger than the average.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), String> {
        let others = self.used.bytes.fetch_sub(self.bytes, Ordering::Relaxed) - self.bytes;
        self.used.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes = bytes;
        if bytes > MAX_BYTES_PER_PARSER {
            let most = MAX_BYTES_PER_PARSER >> 20;
            return Err(format!("grammar is too complex: its parser needs more than {most} MiB"));
        }
        let together = others + bytes;
        let average = together / self.used.parsers.load(Ordering::Relaxed).max(1);
        if together > MAX_BYTES_TOTAL && bytes >= average {
            return Err(
                "grammar is too complex: the parsers of all requests have no more memory, and this one \
                        uses more than most"
                    .into(),
            );
        }
        Ok(())
    }
}

impl Drop for ParserMemoryShare {
    fn drop(&mut self) {
        self.used.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.used.parsers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_share_the_memory_and_give_it_back() {
        let memory = ParserMemory::default();
        let mut large = memory.share();
        assert!(large.set(MAX_BYTES_PER_PARSER + 1).is_err());
        let mut shares: Vec<ParserMemoryShare> = (0..40).map(|_| memory.share()).collect();
        let results: Vec<_> = shares.iter_mut().map(|share| share.set(MAX_BYTES_PER_PARSER / 2)).collect();
        let refused = results.iter().filter(|result| result.is_err()).count();
        assert!(refused > 0 && refused < 20, "{refused}");
        // A small parser is not refused.
        let mut small = memory.share();
        assert_eq!(small.set(1 << 20), Ok(()));
        drop((large, shares));
        assert_eq!(memory.bytes(), 1 << 20);
        assert_eq!(small.set(0), Ok(()));
    }
}
