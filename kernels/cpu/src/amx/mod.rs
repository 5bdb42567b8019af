//! Matrix products on the tile unit of Intel AMX: `unit` configures it, `block`, `bytes` and
//! `heads` have its loops, and the rest divides products by bf16 weights among them.

mod block;
mod bytes;
mod heads;
mod linear;
mod machine;
#[cfg(test)]
mod model;
mod product;
mod unit;

pub(super) use block::{Ahead, Block, Unit};
pub(super) use bytes::Bytes;
pub(super) use heads::{Scores, Weighted};
pub(super) use machine::is_available;
pub(super) use unit::{Amx, ROWS, WIDTH, spin};
