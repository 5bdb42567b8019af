//! The device's record of every sequence: its tokens, its block table, and its logit biases.

use millrace_backend::sampling::MAX_BIASES;
use millrace_backend::{Result, StepSize};

use super::upload::SlotList;
use crate::ops::step;
use crate::{Device, Elem, Memory, View};

/// The lists of all slots in device memory.
#[derive(Debug)]
pub(super) struct SlotLists {
    slots: usize,
    history: Memory,
    history_stride: usize,
    tables: Memory,
    table_stride: usize,
    /// For each slot the tokens that have a bias, then their biases.
    biases: Memory,
    /// For each slot the number of its blocks that were uploaded.
    uploaded_blocks: Vec<usize>,
}

impl SlotLists {
    pub(super) fn new(device: &Device, size: &StepSize<'_>) -> Result<SlotLists> {
        let (slots, history_stride, table_stride) = (size.rows, size.sequence_tokens, size.table_blocks());
        let history = device.allocate(Elem::I32, slots * history_stride)?;
        let tables = device.allocate(Elem::I32, slots * table_stride)?;
        let biases = device.allocate(Elem::I32, slots * 2 * MAX_BIASES)?;
        let uploaded_blocks = vec![0; slots];
        Ok(SlotLists { slots, history, history_stride, tables, table_stride, biases, uploaded_blocks })
    }

    pub(super) fn bytes(size: &StepSize<'_>) -> usize {
        let per_slot =
            size.sequence_tokens.saturating_add(size.table_blocks()).saturating_add(2 * MAX_BIASES);
        size.rows.saturating_mul(per_slot).saturating_mul(Elem::I32.size())
    }

    /// Gives `slot` to a new sequence, none of whose blocks were uploaded.
    pub(super) fn reset(&mut self, slot: usize) {
        self.uploaded_blocks[slot] = 0;
    }

    /// Marks the first `blocks` blocks of a slot as uploaded, and returns how many of its blocks
    /// were uploaded before.
    pub(super) fn mark_uploaded(&mut self, slot: usize, blocks: usize) -> usize {
        let known = self.uploaded_blocks[slot];
        self.uploaded_blocks[slot] = known.max(blocks);
        known
    }

    pub(super) fn lists(&self) -> step::SlotState<'_> {
        step::SlotState {
            slots: self.slots,
            history: self.history.view(Elem::I32),
            history_stride: self.history_stride,
            tables: self.tables.view(Elem::I32),
            table_stride: self.table_stride,
        }
    }

    pub(super) fn list(&self, list: SlotList) -> step::SlotArray<'_> {
        match list {
            SlotList::Tables => self.lists().block_tables(),
            SlotList::Histories => self.lists().histories(),
            SlotList::Biases => {
                let words = self.biases.view(Elem::I32);
                step::SlotArray { slots: self.slots, words, stride: 2 * MAX_BIASES }
            }
        }
    }

    /// Returns the tokens, u32 `[slots, stride]`, and the stride, as the sampler reads them.
    pub(super) fn history(&self) -> (View<'_>, usize) {
        (self.history.view(Elem::U32), self.history_stride)
    }

    /// Returns the biased tokens and their biases, as the sampler reads them. Those of a slot start
    /// at [`SlotLists::first_bias`] in both.
    pub(super) fn biases(&self) -> (View<'_>, View<'_>) {
        let len = self.slots * 2 * MAX_BIASES;
        let tokens = self.biases.view(Elem::U32).slice(0..len - MAX_BIASES);
        (tokens, self.biases.view(Elem::F32).slice(MAX_BIASES..len))
    }

    pub(super) fn first_bias(slot: usize) -> usize {
        slot * 2 * MAX_BIASES
    }
}
