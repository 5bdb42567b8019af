//! Answers of models: what an answer may be, and what it means.
//!
//! | module | its job |
//! |---|---|
//! | [`grammar`] | restricts the tokens of an answer to a grammar |
//! | [`tools`] | the calls of tools in an answer: their grammar and how they are read |
//! | [`reasoning`] | tells the reasoning of an answer from the rest and limits it |
//!
//! A request's grammar becomes a [`Constraint`], which gives the [`Mask`] of allowed tokens after
//! each token. Nothing here knows the engine that runs it, the APIs of requests, or tenants.

mod constraint;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod grammar;
pub mod reasoning;
pub mod tools;

pub use constraint::{Constraint, Mask};
