//! The results of kernels by their definitions, in f64.

pub(crate) mod attention;
