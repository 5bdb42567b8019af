//! What the device keeps of every sequence: its tokens, its block table, and its biases.

use super::words::List;
use super::{Device, Elem, Memory, View};
use crate::Result;
use crate::backend::StepSize;
use crate::cuda::ops::step;
use crate::sampling::MOST_BIASES;

/// The lists of all slots.
#[derive(Debug)]
pub(super) struct Slots {
    slots: usize,
    history: Memory,
    history_stride: usize,
    tables: Memory,
    table_stride: usize,
    /// For each slot the tokens that have a bias, then the biases.
    biases: Memory,
    /// How many of its blocks the device has been told for each slot.
    told: Vec<usize>,
}

impl Slots {
    pub(super) fn new(device: &Device, size: &StepSize<'_>) -> Result<Slots> {
        let (slots, history_stride, table_stride) = (size.rows, size.sequence_tokens, size.table_blocks());
        let history = device.allocate(Elem::I32, slots * history_stride)?;
        let tables = device.allocate(Elem::I32, slots * table_stride)?;
        let biases = device.allocate(Elem::I32, slots * 2 * MOST_BIASES)?;
        Ok(Slots { slots, history, history_stride, tables, table_stride, biases, told: vec![0; slots] })
    }

    pub(super) fn bytes(size: &StepSize<'_>) -> usize {
        let per_slot =
            size.sequence_tokens.saturating_add(size.table_blocks()).saturating_add(2 * MOST_BIASES);
        size.rows.saturating_mul(per_slot).saturating_mul(Elem::I32.size())
    }

    /// A new sequence takes `slot`: the device knows none of its blocks.
    pub(super) fn renew(&mut self, slot: usize) {
        self.told[slot] = 0;
    }

    /// How many of a slot's blocks the device knows; it knows `blocks` of them from now on, if these are more.
    pub(super) fn tell(&mut self, slot: usize, blocks: usize) -> usize {
        let known = self.told[slot];
        self.told[slot] = known.max(blocks);
        known
    }

    pub(super) fn lists(&self) -> step::Slots<'_> {
        step::Slots {
            slots: self.slots,
            history: self.history.view(Elem::I32),
            history_stride: self.history_stride,
            tables: self.tables.view(Elem::I32),
            table_stride: self.table_stride,
        }
    }

    pub(super) fn list(&self, list: List) -> step::List<'_> {
        match list {
            List::Tables => self.lists().block_tables(),
            List::Histories => self.lists().histories(),
            List::Biases => {
                let words = self.biases.view(Elem::I32);
                step::List { slots: self.slots, words, stride: 2 * MOST_BIASES }
            }
        }
    }

    /// The tokens, u32 `[slots, stride]`, and the stride, as the sampler reads them.
    pub(super) fn history(&self) -> (View<'_>, usize) {
        (self.history.view(Elem::U32), self.history_stride)
    }

    /// Tokens and biases, as the sampler reads them: those of a slot begin at [`Slots::first_bias`] in both.
    pub(super) fn biases(&self) -> (View<'_>, View<'_>) {
        let len = self.slots * 2 * MOST_BIASES;
        let tokens = self.biases.view(Elem::U32).slice(0..len - MOST_BIASES);
        (tokens, self.biases.view(Elem::F32).slice(MOST_BIASES..len))
    }

    pub(super) fn first_bias(slot: usize) -> usize {
        slot * 2 * MOST_BIASES
    }
}
