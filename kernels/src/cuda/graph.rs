//! Work that is written down once and done many times.

use std::sync::Arc;

use super::device::Device;
use super::driver::Driver;
use crate::Result;

/// Recorded work. The addresses and numbers in it are those of the recording; memory that it uses stays until all graphs of the device are
/// dropped, even if its owner gives it back.
#[derive(Debug)]
pub struct Graph {
    driver: Arc<dyn Driver>,
    id: u64,
}

impl Device {
    /// Writes down what `work` asks of the device instead of doing it.
    ///
    /// A graph holds launches, products, collectives, fills, and copies within the device or with pinned memory. The same kernels and products of
    /// the same shapes must have run before, so that nothing has to be loaded or chosen while the device is recording.
    /// Only one thread may use the device meanwhile.
    ///
    /// # Errors
    /// What `work` fails with, or that it asked for something that a graph cannot hold: memory, an event, or a copy that waits.
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
    /// Starts everything that was recorded, in its order.
    ///
    /// # Errors
    /// What the driver fails with.
    pub fn replay(&self) -> Result<()> {
        // SAFETY: the graph is the driver's until it is dropped.
        unsafe { self.driver.replay(self.id) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is not used after this.
        unsafe { self.driver.drop_graph(self.id) }
    }
}

/// A recording under way: it ends however the work does.
struct Recording(Option<Arc<dyn Driver>>);

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(driver) = self.0.take()
            && let Ok(graph) = driver.end_recording()
        {
            // SAFETY: nobody else has seen the graph.
            unsafe { driver.drop_graph(graph) }
        }
    }
}
