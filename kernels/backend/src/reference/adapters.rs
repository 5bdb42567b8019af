//! Low-rank adapters.

use super::buffers::{Buf, Queue};
use super::math::dot;
use crate::{AdapterSpec, AdapterWeights, LowRankProduct, Result};

/// The adapters of one matrix of [`Reference`](super::Reference).
#[derive(Debug, Clone)]
pub struct Adapters {
    spec: AdapterSpec,
    /// The rounded weights of each place.
    places: Vec<AdapterWeights>,
}

impl Adapters {
    pub(super) fn new(spec: AdapterSpec) -> Adapters {
        Adapters { spec, places: vec![AdapterWeights::default(); spec.places] }
    }

    pub(super) fn load(&mut self, place: usize, weights: &AdapterWeights) -> Result<()> {
        weights.check(&self.spec, place)?;
        let mut weights = weights.clone();
        for LowRankProduct { down, up, .. } in &mut weights.products {
            down.iter_mut().chain(up).for_each(|w| *w = self.spec.dtype.round(*w));
        }
        self.places[place] = weights;
        Ok(())
    }

    /// Adds the products of each token's adapter. Features between the two matrices of a product
    /// are f32, as on devices.
    pub(super) fn adapt(&self, step: &Queue, x: &Buf, mid: &mut Buf, out: &mut Buf) {
        for (t, &(_, table)) in step.places.iter().enumerate() {
            let Some(place) = step.adapters[table] else { continue };
            for LowRankProduct { rank, down, up, rows } in &self.places[place].products {
                let mid = &mut mid.row_mut(t)[..*rank];
                for (mid, down) in mid.iter_mut().zip(down.chunks_exact(self.spec.inputs)) {
                    *mid = dot(down, x.row(t)) as f32;
                }
                let out = out.row_mut(t);
                for (o, up) in rows.iter().cloned().flatten().zip(up.chunks_exact(*rank)) {
                    out[o] = (f64::from(out[o]) + dot(up, mid)) as f32;
                }
            }
        }
    }
}
