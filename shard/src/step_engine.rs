//! The interface between the loop over steps and whatever computes the steps.

use millrace_proto::{Masks, Step, StepOutput};

use crate::Error;

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
}

/// The masks that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AwaitedMasks {
    /// The step's number.
    pub(crate) step: u64,
    /// Whether the forward pass is done, so that only the masks are missing.
    pub(crate) is_forward_done: bool,
}
