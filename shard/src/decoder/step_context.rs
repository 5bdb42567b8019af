//! The context of every kind of layer: the step that is computed, and buffers by their width.

use millrace_backend::{Backend, OpenStep, Result};

/// The step that layers compute, as they see it.
pub(super) struct StepContext<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) step: &'a OpenStep<'a, B::Queue>,
    /// Number of tokens.
    pub(super) tokens: usize,
}

/// One buffer for each width that occurs among the layers. In nearly all models there is only one.
pub(super) struct ByWidth<Buf>(Vec<(usize, Buf)>);

impl<Buf> ByWidth<Buf> {
    pub(super) fn new(widths: Vec<usize>, buf: impl Fn(usize) -> Result<Buf>) -> Result<Self> {
        widths.into_iter().map(|width| Ok((width, buf(width)?))).collect::<Result<_>>().map(ByWidth)
    }

    /// Returns the buffer of this width.
    ///
    /// # Panics
    /// If no layer has this width.
    pub(super) fn of(&mut self, width: usize) -> &mut Buf {
        let at = self.0.iter().position(|(of, _)| *of == width).expect("every layer's width has a buffer");
        &mut self.0[at].1
    }
}
