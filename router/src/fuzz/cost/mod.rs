//! Targets whose cost must be at most proportional to their input: all work that a request or a
//! model's answer can trigger.
//!
//! `tests/cost.rs` runs each [`CostTarget`] on inputs of n, 2n and 4n bytes and measures CPU time
//! and allocated memory. This module defines the targets (`targets`) and their inputs (`pattern`).
//! It measures nothing.

mod alphabets;
mod pattern;
mod target;
mod targets;

pub use pattern::InputPattern;
pub use target::{CostLimits, CostTarget, Work};
pub use targets::targets;
