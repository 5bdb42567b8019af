//! Matrix products on the tile unit of Intel AMX.

mod linear;
#[cfg(test)]
mod model;
mod product;
mod unit;

pub(super) use unit::{Ahead, Amx, Block, Bytes, ROWS, Scores, Unit, WIDTH, Weighted, is_available, spin};
