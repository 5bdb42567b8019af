//! The engine: the scheduler's loop, its link to the shards, and the handle that the rest of the router holds.

pub mod handle;

pub use handle::{Engine, Event, Finish, Generation, Refused, Request, State, Token};
