//! The types that the traits of a backend share.

/// The types of a device's objects.
pub trait DeviceTypes: 'static {
    /// Activations, `[rows, cols]`.
    type Buf;
    /// Constants: norm weights, biases, rotary tables.
    type Vector;
    /// A weight matrix `[out, in]` in the layout that the device multiplies fastest.
    type Matrix;
    /// The paged KV cache of one layer.
    type Kv;
    /// The device's side of the steps: the current step's geometry, the sequences' tokens if the
    /// device keeps them, and the results of finished steps.
    type Queue;
}
