//! Graphs: work that is recorded once and executed many times.

use std::sync::Arc;

use millrace_backend::Result;

use super::driver::Driver;
use super::handle::Device;

/// Recorded work. Its addresses and numbers are those of the recording. Memory that it uses stays
/// allocated until all graphs of the device are dropped, even if the memory's owner frees it.
#[derive(Debug)]
pub struct Graph {
    driver: Arc<dyn Driver>,
    id: u64,
}

impl Device {
    /// Records the work that `work` submits to the main stream instead of executing it.
    ///
    /// A graph can hold launches, products, collectives, fills, and copies within the device or
    /// with pinned memory. The same kernels, and products of the same shapes, must have run before,
    /// because loading a kernel and choosing an algorithm are not possible while the device is
    /// recording. Only one thread may use the device during a recording.
    ///
    /// # Errors
    /// The error of `work`, or an error if it asked for something that a graph cannot hold: memory,
    /// an event, or a copy that waits.
    pub fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let driver = self.driver().clone();
        driver.begin_recording()?;
        let mut recording = Recording(Some(driver));
        work()?;
        let driver = recording.0.take().expect("it is taken only here");
        let id = driver.end_recording()?;
        Ok(Graph { driver, id })
    }
}

impl Graph {
    /// Submits everything that was recorded, in its order.
    ///
    /// # Errors
    /// The driver's error.
    pub fn replay(&self) -> Result<()> {
        // SAFETY: the graph exists until it is dropped.
        unsafe { self.driver.replay(self.id) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is not used after this.
        unsafe { self.driver.destroy_graph(self.id) }
    }
}

/// A recording in progress. Dropping it ends the recording, even if the work panics.
struct Recording(Option<Arc<dyn Driver>>);

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(driver) = self.0.take()
            && let Ok(graph) = driver.end_recording()
        {
            // SAFETY: nothing else has the graph.
            unsafe { driver.destroy_graph(graph) }
        }
    }
}
