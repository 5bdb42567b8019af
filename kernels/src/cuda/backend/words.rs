//! What the host tells the device of a step: one array of words, filled here and copied.
//!
//! What every step needs stands first and goes in one copy. Tokens and biases of new sequences, and masks, follow; a step without
//! them leaves them out. The host has two of them, so that it can fill one while the other is on its way.

use std::iter::repeat_n;
use std::ops::Range;

use super::{Device, Elem, Memory, View};
use crate::Result;
use crate::cuda::ops::sample::{COLUMNS, greedy};
use crate::cuda::ops::step::Ranges;
use crate::cuda::{Event, Pinned};

/// Words of a row, and of a range.
const WORDS: usize = 4;

/// The lists of slots that words may be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    /// Block tables.
    Tables,
    /// Tokens.
    Histories,
    /// Tokens with biases, and the biases.
    Biases,
}

impl List {
    const ALL: [List; 3] = [List::Tables, List::Histories, List::Biases];
}

/// Ranges of words for the slots of one list.
#[derive(Debug, Clone, Copy)]
struct Writes {
    most: usize,
    ranges: usize,
    words: usize,
    room: usize,
    used_ranges: usize,
    used_words: usize,
}

/// How much of what there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Rows of a step.
    pub(super) rows: usize,
    /// Words for each list, in the order of [`List`].
    pub(super) lists: [usize; 3],
    /// Words of a row's mask.
    pub(super) mask_words: usize,
}

/// The array, here and on the device.
#[derive(Debug)]
pub(super) struct Words {
    memory: Memory,
    host: [Host; 2],
    /// Which of the two is filled, and whether it may be.
    turn: usize,
    open: bool,
    rows: usize,
    at_rows: usize,
    at_choices: usize,
    writes: [Writes; 3],
    at_masks: usize,
    mask_words: usize,
}

/// One of the host's arrays.
#[derive(Debug)]
struct Host {
    words: Pinned,
    /// Reached when it has arrived.
    sent: Event,
    /// Rows from here on have neutral choices.
    chosen: usize,
}

impl Words {
    pub(super) fn new(device: &Device, room: &Room) -> Result<Words> {
        let mut end = 0;
        let mut take = |len: usize| {
            // The kernels read four words at once.
            let at = end;
            end = (end + len).next_multiple_of(WORDS);
            at
        };
        take(WORDS); // How many rows there are, and ranges for each list.
        let (at_rows, at_choices) = (take(room.rows * WORDS), take(room.rows * COLUMNS));
        let writes = room.lists.map(|room_of_list| {
            let most = 2 * room.rows;
            let (ranges, words) = (take(most * WORDS), take(room_of_list));
            Writes { most, ranges, words, room: room_of_list, used_ranges: 0, used_words: 0 }
        });
        let at_masks = take(room.rows * room.mask_words);
        let memory = device.allocate(Elem::I32, end)?;
        let (rows, mask_words) = (room.rows, room.mask_words);
        let host = || -> Result<Host> {
            Ok(Host { words: device.pinned(end * size_of::<u32>())?, sent: device.event()?, chosen: rows })
        };
        let host = [host()?, host()?];
        Ok(Words {
            memory,
            host,
            turn: 0,
            open: false,
            rows,
            at_rows,
            at_choices,
            writes,
            at_masks,
            mask_words,
        })
    }

    /// Sees to it that the array can be filled for the next step.
    pub(super) fn open(&mut self) -> Result<()> {
        if !self.open {
            self.host[self.turn].sent.wait()?;
            self.open = true;
            for list in List::ALL {
                self.clear(list);
            }
        }
        Ok(())
    }

    /// Bytes on the device, some more.
    pub(super) fn bytes(room: &Room) -> usize {
        let per_row = WORDS + COLUMNS + 6 * WORDS + room.mask_words;
        let lists: usize = room.lists.iter().sum();
        (room.rows.saturating_mul(per_row))
            .saturating_add(lists + 16 * WORDS)
            .saturating_mul(size_of::<u32>())
    }

    fn put(&mut self, at: usize, words: impl IntoIterator<Item = u32>) {
        let places = self.host[self.turn].words[at * 4..].chunks_exact_mut(4);
        for (place, word) in places.zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Row `r`: slot, first position, count, and whether a token is sampled.
    pub(super) fn set_row(&mut self, r: usize, row: [usize; WORDS]) {
        self.put(self.at_rows + r * WORDS, row.map(|word| word as u32));
    }

    pub(super) fn set_row_count(&mut self, rows: usize) {
        self.put(0, [rows as u32]);
    }

    /// The choices of the first `n` rows of `table`, u32 `[COLUMNS, rows]`.
    pub(super) fn set_choices(&mut self, n: usize, table: &[u32]) {
        for column in 0..COLUMNS {
            let of_rows = table[column * self.rows..][..n].iter().copied();
            self.put(self.at_choices + column * self.rows, of_rows);
        }
        self.clear_choices(n);
    }

    /// The other rows want nothing: a graph samples from more rows than a step has.
    fn clear_choices(&mut self, n: usize) {
        for row in n..self.host[self.turn].chosen {
            for (column, word) in greedy().into_iter().enumerate() {
                self.put(self.at_choices + column * self.rows + row, [word]);
            }
        }
        self.host[self.turn].chosen = n;
    }

    /// Row `m` of the masks; words that are not given are 0.
    pub(super) fn set_mask(&mut self, m: usize, allowed: &[u32]) {
        let rest = repeat_n(0, self.mask_words - allowed.len());
        self.put(self.at_masks + m * self.mask_words, allowed.iter().copied().chain(rest));
    }

    /// Adds words for a slot's list from `at` on. Answers how many of them there was room for.
    pub(super) fn stage(&mut self, list: List, slot: usize, at: usize, words: &[u32]) -> usize {
        let Writes { most, ranges, words: to, room, used_ranges, used_words } = self.writes[list as usize];
        let taken = words.len().min(room - used_words);
        if taken == 0 || used_ranges == most {
            return 0;
        }
        let range = [slot, at, used_words, taken].map(|word| word as u32);
        self.put(ranges + used_ranges * WORDS, range);
        self.put(to + used_words, words[..taken].iter().copied());
        self.set_used(list, used_ranges + 1, used_words + taken);
        taken
    }

    /// Forgets the words for a list, which have been written.
    pub(super) fn clear(&mut self, list: List) {
        self.set_used(list, 0, 0);
    }

    fn set_used(&mut self, list: List, ranges: usize, words: usize) {
        let writes = &mut self.writes[list as usize];
        (writes.used_ranges, writes.used_words) = (ranges, words);
        self.put(1 + list as usize, [ranges as u32]);
    }

    /// Ranges of words that there are for a list.
    pub(super) fn count(&self, list: List) -> usize {
        self.writes[list as usize].used_ranges
    }

    /// Sends it all, with `masks` rows of masks. The other array is filled from now on.
    pub(super) fn send(&mut self, device: &Device, masks: usize) -> Result<()> {
        let tables = &self.writes[List::Tables as usize];
        self.copy(device, 0..tables.words + tables.used_words)?;
        for list in [List::Histories, List::Biases].into_iter().filter(|list| self.count(*list) > 0) {
            self.send_list(device, list)?;
        }
        if masks > 0 {
            self.copy(device, self.at_masks..self.at_masks + masks * self.mask_words)?;
        }
        self.host[self.turn].sent.record()?;
        (self.turn, self.open) = (1 - self.turn, false);
        Ok(())
    }

    /// Sends the words for a list, of which there are more than there is room for, and how many ranges they are.
    pub(super) fn send_early(&self, device: &Device, list: List) -> Result<()> {
        self.copy(device, 0..WORDS)?;
        self.send_list(device, list)
    }

    fn send_list(&self, device: &Device, list: List) -> Result<()> {
        let writes = &self.writes[list as usize];
        self.copy(device, writes.ranges..writes.words + writes.used_words)
    }

    fn copy(&self, device: &Device, words: Range<usize>) -> Result<()> {
        let bytes = words.start * 4..words.end * 4;
        device.write_from(self.view(Elem::I32, words), &self.host[self.turn].words, bytes)
    }

    fn view(&self, elem: Elem, words: Range<usize>) -> View<'_> {
        self.memory.view(elem).slice(words)
    }

    pub(super) fn row_count(&self) -> View<'_> {
        self.view(Elem::I32, 0..1)
    }

    pub(super) fn rows(&self) -> View<'_> {
        self.view(Elem::I32, self.at_rows..self.at_rows + self.rows * WORDS)
    }

    /// The words for a list, for a launch that takes `most` ranges.
    pub(super) fn ranges(&self, list: List, most: usize) -> Ranges<'_> {
        let writes = &self.writes[list as usize];
        Ranges {
            most: most.min(writes.most),
            count: self.view(Elem::I32, 1 + list as usize..2 + list as usize),
            ranges: self.view(Elem::I32, writes.ranges..writes.ranges + writes.most * WORDS),
            words: self.view(Elem::I32, writes.words..writes.words + writes.room),
        }
    }

    /// The table of choices; its stride is the most rows.
    pub(super) fn choices(&self) -> View<'_> {
        self.view(Elem::U32, self.at_choices..self.at_choices + self.rows * COLUMNS)
    }

    /// `[rows, mask_words]`.
    pub(super) fn masks(&self) -> View<'_> {
        self.view(Elem::U32, self.at_masks..self.at_masks + self.rows * self.mask_words)
    }
}
