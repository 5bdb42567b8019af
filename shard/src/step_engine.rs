//! The interface between the loop over steps and whatever computes the steps.

use millrace_proto::{Masks, Step, StepOutput};

use crate::Error;
use crate::decoder::RankAdapter;

/// An engine that computes steps in the order in which they are submitted.
pub(crate) trait StepEngine {
    /// Returns the maximum number of steps that are submitted and not collected.
    fn steps_ahead(&self) -> usize;

    /// Starts a step. Not called while a step waits for its masks.
    ///
    /// # Errors
    /// If the step is malformed or the device fails. The engine is of no further use then.
    fn submit(&mut self, step: &Step) -> Result<(), Error>;

    /// Returns the masks that the engine waits for. They belong to the last step submitted.
    ///
    /// # Errors
    /// If the device has failed.
    fn awaited_masks(&mut self) -> Result<Option<AwaitedMasks>, Error>;

    /// Continues the step that waits for its masks. Without `masks`, all rows without a mask are
    /// deferred.
    ///
    /// # Errors
    /// If the masks do not belong to the step, or the device fails.
    fn add_masks(&mut self, masks: Option<&Masks>) -> Result<(), Error>;

    /// Returns whether the oldest step that is submitted and not collected is done. A step that
    /// waits for its masks is not.
    ///
    /// # Errors
    /// If the device has failed.
    fn is_done(&mut self) -> Result<bool, Error>;

    /// Waits for the oldest step and returns its answer, whose `idle_micros` is 0.
    ///
    /// # Errors
    /// If the device has failed.
    fn collect(&mut self) -> Result<StepOutput, Error>;

    /// Replaces the adapter in a place of the pools. Without an adapter the place is free. Not
    /// called while a step is submitted and not collected.
    ///
    /// # Errors
    /// If the adapter does not fit the pools. The place is free then.
    fn set_adapter(&mut self, place: usize, adapter: Option<ReadAdapter<'_>>) -> Result<(), Error>;
}

/// An adapter that has been read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAdapter<'a> {
    /// The number by which sequences name it.
    pub(crate) number: u32,
    /// This rank's share of it.
    pub(crate) weights: &'a RankAdapter,
}

/// The masks that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AwaitedMasks {
    /// The step's number.
    pub(crate) step: u64,
    /// Whether the forward pass is done, so that only the masks are missing.
    pub(crate) is_forward_done: bool,
}
