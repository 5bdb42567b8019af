//! The types that the traits of a backend share.

/// The types of a device's objects.
pub trait DeviceTypes: 'static {
    /// Activations, `[rows, cols]`.
    type Buf;
    /// Constants: norm weights, biases, rotary tables.
    type Vector;
    /// A weight matrix `[out, in]` in the layout that the device multiplies fastest.
    type Matrix;
    /// One weight matrix of each expert of a layer, all of one shape.
    type Experts;
    /// A small weight matrix of each query head of a layer, all of one shape.
    type HeadMatrices;
    /// The adapters of one matrix, each in a place of its own.
    type Adapters;
    /// The experts that were chosen for the tokens of a step, and the working memory to compute
    /// with them. Layers use it one after the other.
    type Routing;
    /// The paged KV cache of one layer.
    type Kv;
    /// The recurrent states of one layer, one for each slot.
    type States;
    /// The device's side of the steps: the current step's geometry, the sequences' tokens if the
    /// device keeps them, and the results of finished steps.
    type Queue;
}
