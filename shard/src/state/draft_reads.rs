//! The positions that the draft model has read.
//!
//! The draft model stores its keys and values in blocks with the same numbers as the model's. It
//! reads a sequence only when it is to guess, so that it takes no time from steps without guesses.
//! What it has read is noted for each block, because sequences share blocks and leave them to
//! others.

use std::ops::Range;

use millrace_model::ShardLimits;

/// The positions that the draft model has read.
#[derive(Debug)]
pub(super) struct DraftReads {
    block_size: usize,
    /// Number of positions of the draft model.
    positions: usize,
    /// Maximum number of tokens that the draft model reads in a step before it guesses, beside one
    /// for each sequence.
    most: usize,
    /// Number of tokens that it may still read in this step.
    left: usize,
    /// For each block, the number of its positions that have been read, from the first on.
    read: Vec<u32>,
}

impl DraftReads {
    /// Creates the notes for a draft model of `positions` positions that reads up to `most` tokens
    /// in a step before it guesses.
    pub(super) fn new(limits: &ShardLimits, positions: usize, most: usize) -> Self {
        let ShardLimits { block_size, num_blocks, .. } = *limits;
        DraftReads { block_size, positions, most, left: most, read: vec![0; num_blocks] }
    }

    /// Begins a step.
    pub(super) fn begin_step(&mut self) {
        self.left = self.most;
    }

    /// Forgets what was read of a block, because it is about to hold something else.
    pub(super) fn forget(&mut self, block: u32) {
        if let Some(read) = self.read.get_mut(block as usize) {
            *read = 0;
        }
    }

    /// Notes that the model computes the positions of a sequence with these blocks from `start` on,
    /// up to the end of the blocks.
    pub(super) fn replace_from(&mut self, start: usize, blocks: &[u32]) {
        let first = start / self.block_size;
        for (index, &block) in blocks.iter().enumerate().skip(first) {
            let kept = start.saturating_sub(index * self.block_size) as u32;
            let read = &mut self.read[block as usize];
            *read = (*read).min(kept);
        }
    }

    /// Returns the number of the first positions of a sequence with these blocks that have been
    /// read.
    fn read_positions(&self, blocks: &[u32]) -> usize {
        let full = |block: &&u32| self.read[**block as usize] as usize == self.block_size;
        let whole = blocks.iter().take_while(full).count();
        let part = blocks.get(whole).map_or(0, |&block| self.read[block as usize] as usize);
        whole * self.block_size + part
    }

    /// Chooses the positions that the draft model reads before it guesses the tokens from `end` on,
    /// of a sequence with these blocks, and notes that they are read. Returns `None` if it has too
    /// few positions for the guesses, or reads nothing in this step. The positions end before `end`
    /// if they are too many for this step.
    pub(super) fn read(&mut self, end: usize, guesses: usize, blocks: &[u32]) -> Option<Range<usize>> {
        // The last guess is not read.
        if end + guesses > self.positions + 1 {
            return None;
        }
        let start = self.read_positions(&blocks[..end.div_ceil(self.block_size)]).min(end - 1);
        // The last token has a place of its own.
        let more = (end - 1 - start).min(self.left);
        self.left -= more;
        let reads_all = start + more == end - 1;
        let stop = if reads_all { end } else { start + more };
        let known = if reads_all { end + guesses - 1 } else { stop };
        self.note(start, known, blocks);
        (stop > start).then_some(start..stop)
    }

    /// Notes that the positions from `start` to `end` of a sequence with these blocks are read, as
    /// all before them are.
    fn note(&mut self, start: usize, end: usize, blocks: &[u32]) {
        for (index, &block) in blocks.iter().enumerate().skip(start / self.block_size) {
            let read = end.saturating_sub(index * self.block_size).min(self.block_size) as u32;
            let noted = &mut self.read[block as usize];
            *noted = (*noted).max(read);
        }
    }
}
