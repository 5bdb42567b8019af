//! Events: marks in a device's streams that the host and the other stream can wait for.

use std::ops::Range;
use std::sync::Arc;

use millrace_backend::Result;

use super::driver::{DeviceStream, Driver};
use super::handle::Device;
use super::memory::View;
use super::pinned::Pinned;

/// A mark in a stream. An event that was never recorded counts as reached.
#[derive(Debug)]
pub struct DeviceEvent {
    driver: Arc<dyn Driver>,
    id: u64,
}

impl Device {
    /// Creates an event that tells whether it was reached, but not when.
    ///
    /// # Errors
    /// The driver's error.
    pub fn event(&self) -> Result<DeviceEvent> {
        DeviceEvent::new(self, false)
    }

    /// Creates an event with a time stamp, for [`DeviceEvent::seconds_since`].
    ///
    /// # Errors
    /// The driver's error.
    pub fn timed_event(&self) -> Result<DeviceEvent> {
        DeviceEvent::new(self, true)
    }

    /// Makes later work on the main stream wait for `event`. The host does not wait.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait_for(&self, event: &DeviceEvent) -> Result<()> {
        event.hold(DeviceStream::Main)
    }

    /// The device's second stream, for copies that overlap with computation.
    pub fn copies(&self) -> CopyStream<'_> {
        CopyStream(self)
    }
}

impl DeviceEvent {
    fn new(device: &Device, timed: bool) -> Result<DeviceEvent> {
        let driver = device.driver().clone();
        let id = driver.create_event(timed)?;
        Ok(DeviceEvent { driver, id })
    }

    /// Records the event: it is reached when all work submitted to the main stream so far is done.
    /// An earlier record is forgotten.
    ///
    /// # Errors
    /// The driver's error. Recording an event is refused while a graph is being recorded.
    pub fn record(&self) -> Result<()> {
        self.record_on(DeviceStream::Main)
    }

    /// Blocks the calling thread until the event is reached.
    ///
    /// # Errors
    /// The error of the work before the event.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event exists until it is dropped.
        unsafe { self.driver.wait_for_event(self.id) }
    }

    /// Whether the event is reached; does not wait.
    ///
    /// # Errors
    /// The error of the work before the event.
    pub fn reached(&self) -> Result<bool> {
        // SAFETY: as above.
        unsafe { self.driver.is_event_reached(self.id) }
    }

    /// Seconds from `earlier` to this event by the device's clock. Both must be timed and reached.
    ///
    /// # Errors
    /// The driver's error, for example for an event that is not timed.
    pub fn seconds_since(&self, earlier: &DeviceEvent) -> Result<f64> {
        // SAFETY: as above.
        unsafe { self.driver.seconds_between(earlier.id, self.id) }
    }

    fn record_on(&self, stream: DeviceStream) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.driver.record_event(self.id, stream) }
    }

    fn hold(&self, stream: DeviceStream) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.driver.make_stream_wait(stream, self.id) }
    }
}

impl Drop for DeviceEvent {
    fn drop(&mut self) {
        // SAFETY: the event is not used after this.
        unsafe { self.driver.destroy_event(self.id) }
    }
}

/// A device's copy stream. Only events order its work with the main stream.
#[derive(Debug, Clone, Copy)]
pub struct CopyStream<'a>(&'a Device);

impl CopyStream<'_> {
    /// Starts a copy of the bytes `range` of `from` to `view`.
    ///
    /// # Errors
    /// As for [`Device::write_from`].
    pub fn write_from(&self, view: View<'_>, from: &Pinned, range: Range<usize>) -> Result<()> {
        self.0.write_from_on(DeviceStream::Copies, view, from, range)
    }

    /// Records `event` on this stream, as [`DeviceEvent::record`] does on the main stream.
    ///
    /// # Errors
    /// As for [`DeviceEvent::record`].
    pub fn record(&self, event: &DeviceEvent) -> Result<()> {
        event.record_on(DeviceStream::Copies)
    }

    /// Makes later work on this stream wait for `event`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait_for(&self, event: &DeviceEvent) -> Result<()> {
        event.hold(DeviceStream::Copies)
    }
}
