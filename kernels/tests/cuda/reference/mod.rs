//! What the kernels compute, from the definitions and in f64.

pub(crate) mod attention;
