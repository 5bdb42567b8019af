//! Marks in a device's streams, for the host and for the other stream to wait for.

use std::ops::Range;
use std::sync::Arc;

use super::device::Device;
use super::driver::Driver;
use super::memory::View;
use super::pinned::Pinned;
use super::streams::Stream;
use crate::Result;

/// A mark in a stream. One that was never recorded counts as reached.
#[derive(Debug)]
pub struct Event {
    driver: Arc<dyn Driver>,
    id: u64,
}

impl Device {
    /// An event that says whether, not when.
    ///
    /// # Errors
    /// What the driver fails with.
    pub fn event(&self) -> Result<Event> {
        Event::new(self, false)
    }

    /// An event that [`Event::seconds_since`] can be asked of.
    ///
    /// # Errors
    /// What the driver fails with.
    pub fn timed_event(&self) -> Result<Event> {
        Event::new(self, true)
    }

    /// Lets what is asked for from now on wait for `event`, without the host waiting.
    ///
    /// # Errors
    /// What the driver fails with.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        event.hold(Stream::Main)
    }

    /// The device's second stream, for copies beside the computation.
    pub fn copies(&self) -> Copies<'_> {
        Copies(self)
    }
}

impl Event {
    fn new(device: &Device, timed: bool) -> Result<Event> {
        let driver = device.driver().clone();
        let id = driver.event(timed)?;
        Ok(Event { driver, id })
    }

    /// The event is reached when all that was asked for so far is done. What was recorded before is forgotten.
    ///
    /// # Errors
    /// What the driver fails with; it refuses while a graph is recorded.
    pub fn record(&self) -> Result<()> {
        self.record_on(Stream::Main)
    }

    /// Sleeps until the event is reached.
    ///
    /// # Errors
    /// What the work before it failed with.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is the driver's until it is dropped.
        unsafe { self.driver.await_event(self.id) }
    }

    /// Whether the event is reached, without waiting.
    ///
    /// # Errors
    /// What the work before it failed with.
    pub fn reached(&self) -> Result<bool> {
        // SAFETY: as above.
        unsafe { self.driver.has_reached(self.id) }
    }

    /// Seconds on the device's clock from `earlier` to this event. Both are timed and reached.
    ///
    /// # Errors
    /// What the driver fails with, such as an event that is not timed.
    pub fn seconds_since(&self, earlier: &Event) -> Result<f64> {
        // SAFETY: as above.
        unsafe { self.driver.seconds_between(earlier.id, self.id) }
    }

    fn record_on(&self, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.driver.record_event(self.id, stream) }
    }

    fn hold(&self, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.driver.hold(stream, self.id) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is not used after this.
        unsafe { self.driver.drop_event(self.id) }
    }
}

/// The stream of copies of a device. Nothing in it is ordered with the main stream but by events.
#[derive(Debug, Clone, Copy)]
pub struct Copies<'a>(&'a Device);

impl Copies<'_> {
    /// Starts a copy of the bytes `range` of `from` to `view`.
    ///
    /// # Errors
    /// As for [`Device::write_from`].
    pub fn write_from(&self, view: View<'_>, from: &Pinned, range: Range<usize>) -> Result<()> {
        self.0.write_from_on(Stream::Copies, view, from, range)
    }

    /// [`Event::record`] in this stream.
    ///
    /// # Errors
    /// As there.
    pub fn record(&self, event: &Event) -> Result<()> {
        event.record_on(Stream::Copies)
    }

    /// Lets what is asked of this stream from now on wait for `event`.
    ///
    /// # Errors
    /// What the driver fails with.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        event.hold(Stream::Copies)
    }
}
