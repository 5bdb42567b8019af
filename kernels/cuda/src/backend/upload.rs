//! The upload of a step: one array of 32-bit words that the host fills and copies to the device.
//!
//! The words that every step needs come first and are copied together. Tokens and biases of new
//! sequences, and masks, follow; a step without them leaves them out. The host has two buffers, so
//! that it can fill one while the other is copied.

use std::iter::repeat_n;
use std::ops::Range;

use millrace_backend::{Result, SequencePrefix};

use crate::ops::sample::{COLUMNS, greedy};
use crate::ops::step::SlotWrites;
use crate::{Device, DeviceEvent, Elem, Memory, Pinned, View};

/// Words that describe a row, and words that describe a range.
const RECORD: usize = 4;

/// Words that describe the prefix of a row's sequence.
const PREFIX: usize = 2;

/// A list that the device keeps for every slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotList {
    /// The block table.
    Tables,
    /// The tokens of the sequence.
    Histories,
    /// Tokens with a logit bias, and the biases.
    Biases,
}

impl SlotList {
    const ALL: [SlotList; 3] = [SlotList::Tables, SlotList::Histories, SlotList::Biases];
}

/// The area of the array for one list: ranges, each for one slot, and the words that they name.
#[derive(Debug, Clone, Copy)]
struct ListArea {
    /// Capacity in ranges.
    max_ranges: usize,
    /// Index of the first range's words in the array.
    ranges: usize,
    /// Index of the first word in the array.
    words: usize,
    /// Capacity in words.
    max_words: usize,
    used_ranges: usize,
    used_words: usize,
}

/// The capacity of a step's upload.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepCapacity {
    /// Rows of a step.
    pub(super) rows: usize,
    /// Words for each list, in the order of [`SlotList`].
    pub(super) lists: [usize; 3],
    /// Words of a row's mask of allowed tokens.
    pub(super) mask_words: usize,
}

/// The array, on the host and on the device.
#[derive(Debug)]
pub(super) struct StepUpload {
    memory: Memory,
    buffers: [HostBuffer; 2],
    /// Index of the buffer that is filled.
    active_buffer: usize,
    /// Whether the earlier contents of the active buffer have been copied, so that it may be
    /// filled.
    is_open: bool,
    rows: usize,
    at_rows: usize,
    at_prefixes: usize,
    at_choices: usize,
    areas: [ListArea; 3],
    at_masks: usize,
    mask_words: usize,
}

/// One of the host's copies of the array.
#[derive(Debug)]
struct HostBuffer {
    words: Pinned,
    /// Reached when the device has the contents.
    copied: DeviceEvent,
    /// Rows from this one on have neutral choices.
    choices: usize,
}

impl StepUpload {
    pub(super) fn new(device: &Device, capacity: &StepCapacity) -> Result<StepUpload> {
        let mut end = 0;
        let mut take = |len: usize| {
            // The kernels read four words at once.
            let at = end;
            end = (end + len).next_multiple_of(RECORD);
            at
        };
        take(RECORD); // The number of rows, and of the ranges of each list.
        let (rows, mask_words) = (capacity.rows, capacity.mask_words);
        let (at_rows, at_prefixes) = (take(rows * RECORD), take(rows * PREFIX));
        let at_choices = take(rows * COLUMNS);
        let areas = capacity.lists.map(|max_words| {
            let max_ranges = 2 * rows;
            let (ranges, words) = (take(max_ranges * RECORD), take(max_words));
            ListArea { max_ranges, ranges, words, max_words, used_ranges: 0, used_words: 0 }
        });
        let at_masks = take(rows * mask_words);
        let memory = device.allocate(Elem::I32, end)?;
        let buffer = || -> Result<HostBuffer> {
            let words = device.pinned(end * size_of::<u32>())?;
            Ok(HostBuffer { words, copied: device.event()?, choices: rows })
        };
        let buffers = [buffer()?, buffer()?];
        let (active_buffer, is_open) = (0, false);
        Ok(StepUpload {
            memory,
            buffers,
            active_buffer,
            is_open,
            rows,
            at_rows,
            at_prefixes,
            at_choices,
            areas,
            at_masks,
            mask_words,
        })
    }

    /// Returns an upper bound of the bytes on the device.
    pub(super) fn bytes(capacity: &StepCapacity) -> usize {
        let per_row = RECORD + PREFIX + COLUMNS + 6 * RECORD + capacity.mask_words;
        let lists: usize = capacity.lists.iter().sum();
        (capacity.rows.saturating_mul(per_row))
            .saturating_add(lists + 16 * RECORD)
            .saturating_mul(size_of::<u32>())
    }

    /// Waits until the array can be filled for the next step.
    pub(super) fn open(&mut self) -> Result<()> {
        if !self.is_open {
            self.active().copied.wait()?;
            self.is_open = true;
            for list in SlotList::ALL {
                self.clear(list);
            }
        }
        Ok(())
    }

    fn active(&self) -> &HostBuffer {
        &self.buffers[self.active_buffer]
    }

    fn put(&mut self, at: usize, words: impl IntoIterator<Item = u32>) {
        let places = self.buffers[self.active_buffer].words[at * 4..].chunks_exact_mut(4);
        for (place, word) in places.zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Sets row `r`: slot, first position, count, and whether a token is sampled.
    pub(super) fn set_row(&mut self, r: usize, row: [usize; RECORD]) {
        self.put(self.at_rows + r * RECORD, row.map(|word| word as u32));
    }

    /// Sets the prefix of the sequence of row `r`.
    pub(super) fn set_prefix(&mut self, r: usize, prefix: SequencePrefix) {
        let SequencePrefix { len, anchor } = prefix;
        self.put(self.at_prefixes + r * PREFIX, [len as u32, anchor as u32]);
    }

    pub(super) fn set_row_count(&mut self, rows: usize) {
        self.put(0, [rows as u32]);
    }

    /// Sets the sampling choices of the first `n` rows from `table`, u32 `[COLUMNS, rows]`.
    pub(super) fn set_choices(&mut self, n: usize, table: &[u32]) {
        for column in 0..COLUMNS {
            let of_rows = table[column * self.rows..][..n].iter().copied();
            self.put(self.at_choices + column * self.rows, of_rows);
        }
        self.clear_choices(n);
    }

    /// Makes the choices of all rows from `n` on neutral: a graph samples from more rows than a
    /// step has.
    fn clear_choices(&mut self, n: usize) {
        for row in n..self.active().choices {
            for (column, word) in greedy().into_iter().enumerate() {
                self.put(self.at_choices + column * self.rows + row, [word]);
            }
        }
        self.buffers[self.active_buffer].choices = n;
    }

    /// Sets row `m` of the masks. Words beyond `allowed` are 0.
    pub(super) fn set_mask(&mut self, m: usize, allowed: &[u32]) {
        let rest = repeat_n(0, self.mask_words - allowed.len());
        self.put(self.at_masks + m * self.mask_words, allowed.iter().copied().chain(rest));
    }

    /// Adds words for a slot's list from index `at` on. Returns how many of them fit.
    pub(super) fn stage(&mut self, list: SlotList, slot: usize, at: usize, words: &[u32]) -> usize {
        let area = self.areas[list as usize];
        let taken = words.len().min(area.max_words - area.used_words);
        if taken == 0 || area.used_ranges == area.max_ranges {
            return 0;
        }
        let range = [slot, at, area.used_words, taken].map(|word| word as u32);
        self.put(area.ranges + area.used_ranges * RECORD, range);
        self.put(area.words + area.used_words, words[..taken].iter().copied());
        self.set_used(list, area.used_ranges + 1, area.used_words + taken);
        taken
    }

    /// Removes the words for a list, after the device has stored them.
    pub(super) fn clear(&mut self, list: SlotList) {
        self.set_used(list, 0, 0);
    }

    fn set_used(&mut self, list: SlotList, ranges: usize, words: usize) {
        let area = &mut self.areas[list as usize];
        (area.used_ranges, area.used_words) = (ranges, words);
        self.put(1 + list as usize, [ranges as u32]);
    }

    /// Returns the number of ranges for a list.
    pub(super) fn count(&self, list: SlotList) -> usize {
        self.areas[list as usize].used_ranges
    }

    /// Copies the array to the device, with `masks` rows of masks. The other buffer is filled from
    /// now on.
    pub(super) fn send(&mut self, device: &Device, masks: usize) -> Result<()> {
        let tables = &self.areas[SlotList::Tables as usize];
        self.copy(device, 0..tables.words + tables.used_words)?;
        for list in [SlotList::Histories, SlotList::Biases] {
            if self.count(list) > 0 {
                self.send_list(device, list)?;
            }
        }
        self.send_masks(device, masks)?;
        self.close()
    }

    /// Copies the sampling choices and `masks` rows of masks alone to the device. The other buffer
    /// is filled from now on, so that the next step need not wait until these are copied.
    pub(super) fn send_choices(&mut self, device: &Device, masks: usize) -> Result<()> {
        self.copy(device, self.at_choices..self.at_choices + self.rows * COLUMNS)?;
        self.send_masks(device, masks)?;
        self.close()
    }

    fn send_masks(&self, device: &Device, masks: usize) -> Result<()> {
        match masks {
            0 => Ok(()),
            _ => self.copy(device, self.at_masks..self.at_masks + masks * self.mask_words),
        }
    }

    /// Ends the use of the active buffer, and makes the other one active.
    fn close(&mut self) -> Result<()> {
        self.active().copied.record()?;
        (self.active_buffer, self.is_open) = (1 - self.active_buffer, false);
        Ok(())
    }

    /// Copies the words for one list, and the number of their ranges, ahead of the step, because
    /// more words follow than fit.
    pub(super) fn send_early(&self, device: &Device, list: SlotList) -> Result<()> {
        self.copy(device, 0..RECORD)?;
        self.send_list(device, list)
    }

    fn send_list(&self, device: &Device, list: SlotList) -> Result<()> {
        let area = &self.areas[list as usize];
        self.copy(device, area.ranges..area.words + area.used_words)
    }

    fn copy(&self, device: &Device, words: Range<usize>) -> Result<()> {
        let bytes = words.start * 4..words.end * 4;
        device.write_from(self.view(Elem::I32, words), &self.active().words, bytes)
    }

    fn view(&self, elem: Elem, words: Range<usize>) -> View<'_> {
        self.memory.view(elem).slice(words)
    }

    pub(super) fn row_count(&self) -> View<'_> {
        self.view(Elem::I32, 0..1)
    }

    pub(super) fn rows(&self) -> View<'_> {
        self.view(Elem::I32, self.at_rows..self.at_rows + self.rows * RECORD)
    }

    pub(super) fn prefixes(&self) -> View<'_> {
        self.view(Elem::I32, self.at_prefixes..self.at_prefixes + self.rows * PREFIX)
    }

    /// Returns the ranges for a list on the device, for a launch over `most` ranges.
    pub(super) fn ranges(&self, list: SlotList, most: usize) -> SlotWrites<'_> {
        let area = &self.areas[list as usize];
        SlotWrites {
            most: most.min(area.max_ranges),
            count: self.view(Elem::I32, 1 + list as usize..2 + list as usize),
            ranges: self.view(Elem::I32, area.ranges..area.ranges + area.max_ranges * RECORD),
            words: self.view(Elem::I32, area.words..area.words + area.max_words),
        }
    }

    /// Returns the table of choices, `[COLUMNS, rows]`.
    pub(super) fn choices(&self) -> View<'_> {
        self.view(Elem::U32, self.at_choices..self.at_choices + self.rows * COLUMNS)
    }

    /// Returns the masks, `[rows, mask_words]`.
    pub(super) fn masks(&self) -> View<'_> {
        self.view(Elem::U32, self.at_masks..self.at_masks + self.rows * self.mask_words)
    }
}
