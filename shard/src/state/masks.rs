//! Masks that come after their step.
//!
//! A row whose mask follows runs the last token of its sequence, and is sampled when the mask has
//! come. Without a mask it is deferred: no token is sampled after it, and the next row of the slot
//! runs the same token again. All ranks get the same masks, so they defer the same rows.

use millrace_proto::rules::is_mask_or_free;
use millrace_proto::{Row, RowMask};

use super::{Batch, SequenceSlot, SlotTable, StepError};

impl SlotTable {
    /// Gives the rows of the last step that was applied, `batch`, their masks. A row without one is
    /// deferred. A sequence whose mask is invalid is refused.
    ///
    /// # Errors
    /// If a mask is for a slot that waits for none. The table must not be used any more then.
    pub fn set_masks(&mut self, masks: &[RowMask], batch: &mut Batch) -> Result<(), StepError> {
        for RowMask { slot, allowed } in masks {
            let (steps, vocab) = (self.steps, self.vocab);
            let place = self.taken(*slot)?;
            if place.last_row != steps || !(place.awaits_mask || place.refused.is_some()) {
                return Err(StepError::StrayMask { slot: *slot });
            }
            if place.refused.is_some() {
                continue;
            }
            if is_mask_or_free(allowed, vocab) {
                place.awaits_mask = false;
                place.allowed.extend_from_slice(allowed);
            } else {
                let error = StepError::Mask { slot: *slot, words: allowed.len(), vocab };
                place.refused = Some(error.clone());
                batch.refused.push((*slot as usize, error));
            }
        }
        for row in batch.rows.iter_mut().filter(|row| row.mask_follows) {
            let place = &mut self.slots[row.slot];
            row.deferred = std::mem::take(&mut place.awaits_mask);
            place.deferrals += usize::from(row.deferred);
        }
        Ok(())
    }
}

impl SequenceSlot {
    /// Returns the first position that a row runs. A row whose mask follows runs the last token,
    /// even if the router did not know yet that rows before it were deferred.
    pub(super) fn start_of(&self, row: &Row) -> Result<usize, StepError> {
        let start = row.start as usize;
        if !row.mask_follows {
            return Ok(start);
        }
        let last = self.tokens.len() - 1;
        let is_decode = row.sample && row.count == 1 && row.score.is_none() && last >= self.prompt_len;
        let planned = last..=last.saturating_add(self.deferrals);
        if is_decode && row.allowed.is_empty() && planned.contains(&start) {
            Ok(last)
        } else {
            Err(StepError::LateMask { slot: row.slot, start, last })
        }
    }
}
