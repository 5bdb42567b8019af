//! The instructions that only Hopper has, in small kernels written by hand, each beside a kernel
//! with a mistake that must be a fault.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod common;
mod copies;
mod mbarrier;
mod products;
mod warpgroups;
