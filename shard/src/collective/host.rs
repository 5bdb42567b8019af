//! The interface of a collective over host memory.

use crate::collective::abort::Aborter;
use crate::collective::error::CollectiveError;

/// Collectives over host memory among the ranks of one group. Every rank calls the same operations
/// in the same order with the same sizes.
///
/// Each wait for another rank ends after the deadline that was given when the group was formed
/// ([`Deadlines::call`]).
pub trait HostCollective: Send {
    /// Returns the number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks in the group.
    fn world_size(&self) -> usize;

    /// Replaces `values` (the same number on every rank) by their sum over all ranks, element by
    /// element. The sum is computed in the order of the ranks, `((v0 + v1) + v2) + …`, so that
    /// every rank gets the same bits over every transport.
    ///
    /// # Errors
    /// See [`CollectiveError`]. The content of `values` is then undefined.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Passes the `part` of every rank, including this one, to `take(rank, offset, chunk)`. All
    /// parts are equally long. `chunk` is the piece of that rank's part that begins at `offset`. A
    /// long part comes in several chunks: the offsets ascend, and for each offset the ranks come in
    /// their order. An empty part has no chunks.
    ///
    /// # Errors
    /// See [`CollectiveError`]. Some chunks may have been passed to `take` by then.
    fn all_gather(
        &mut self,
        part: &[f32],
        take: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), CollectiveError>;

    /// Returns the `part` of every rank, in the order of the ranks. All parts are equally long.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    fn all_gather_bytes(&mut self, part: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Replaces `bytes` (the same number on every rank) by those of rank 0.
    ///
    /// # Errors
    /// See [`CollectiveError`]. The content of `bytes` is then undefined, except on rank 0.
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), CollectiveError>;

    /// Replaces `values` (the same number on every rank) by those of rank `from`, which every rank
    /// names.
    ///
    /// # Errors
    /// See [`CollectiveError`]. The content of `values` is then undefined.
    fn pass_on(&mut self, from: usize, values: &mut [f32]) -> Result<(), CollectiveError>;

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Returns a handle that ends the waits of this rank and of all other ranks.
    fn aborter(&self) -> Aborter;
}
