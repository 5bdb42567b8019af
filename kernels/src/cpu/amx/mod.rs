//! Matrix products on the tile unit of Intel AMX.

mod linear;
#[cfg(test)]
mod model;
mod product;
mod unit;

pub(super) use unit::{Amx, Bytes, ROWS, WIDTH, is_available, spin};
