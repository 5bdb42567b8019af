//! The interface between the engine and the constraint of a request.

use std::sync::Arc;
use std::time::Duration;

/// A set of tokens: bit `token % 32` of word `token / 32` is set if the token is allowed.
pub type Mask = Arc<[u32]>;

/// Determines which tokens may be generated.
pub trait Constraint: Send {
    /// Advances by a token that the last mask has allowed, and returns the mask for the next token.
    /// Its time and memory are bounded.
    ///
    /// # Errors
    /// The reason for which there is no next mask. The text is meant for the client.
    fn advance(&mut self, token: u32) -> Result<Mask, String>;

    /// Expected CPU time per token, if it is known before the first token.
    fn expected_cost(&self) -> Duration {
        Duration::ZERO
    }
}
