//! Shared memory of a block, with the state of each byte.

use crate::error::Trap;

/// The state of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteState {
    /// Nobody has written it.
    Fresh,
    Written,
    /// An asynchronous copy may write it at any time.
    InFlight,
}

/// Bytes that know whether they may be read.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    bytes: Vec<u8>,
    states: Vec<ByteState>,
}

impl SharedMemory {
    pub(crate) fn new(bytes: usize) -> SharedMemory {
        SharedMemory { bytes: vec![0; bytes], states: vec![ByteState::Fresh; bytes] }
    }

    fn range(&self, address: u64, bytes: usize) -> Result<std::ops::Range<usize>, Trap> {
        let len = self.bytes.len();
        match usize::try_from(address).ok().filter(|&start| start <= len && bytes <= len - start) {
            Some(start) => Ok(start..start + bytes),
            None => Err(Trap::new(format!(
                "{bytes} bytes at {address:#x} of shared memory, which has {len} bytes"
            ))),
        }
    }

    /// The bytes of a range, of which those with a bit in `used` must have been written.
    pub(crate) fn read(&self, address: u64, bytes: usize, used: u64) -> Result<&[u8], Trap> {
        let range = self.range(address, bytes)?;
        for (i, state) in self.states[range.clone()].iter().enumerate() {
            match state {
                ByteState::Written => {}
                ByteState::Fresh if used >> i.min(63) & 1 == 0 => {}
                ByteState::Fresh => {
                    let at = address + i as u64;
                    return Err(Trap::new(format!("reads shared memory at {at:#x}, which was not written")));
                }
                ByteState::InFlight => return Err(in_flight("reads", address + i as u64)),
            }
        }
        Ok(&self.bytes[range])
    }

    /// The bytes of a range that is written.
    pub(crate) fn write(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], Trap> {
        let range = self.range(address, bytes)?;
        if let Some(i) = self.states[range.clone()].iter().position(|s| *s == ByteState::InFlight) {
            return Err(in_flight("writes", address + i as u64));
        }
        self.states[range.clone()].fill(ByteState::Written);
        Ok(&mut self.bytes[range])
    }

    /// Begins an asynchronous write.
    pub(crate) fn begin_copy(&mut self, address: u64, bytes: usize) -> Result<(), Trap> {
        let range = self.range(address, bytes)?;
        if let Some(i) = self.states[range.clone()].iter().position(|s| *s == ByteState::InFlight) {
            return Err(in_flight("copies to", address + i as u64));
        }
        self.states[range].fill(ByteState::InFlight);
        Ok(())
    }

    /// Ends an asynchronous write.
    pub(crate) fn end_copy(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], Trap> {
        let range = self.range(address, bytes)?;
        self.states[range.clone()].fill(ByteState::Written);
        Ok(&mut self.bytes[range])
    }
}

fn in_flight(does: &str, at: u64) -> Trap {
    Trap::new(format!("{does} shared memory at {at:#x}, where an asynchronous copy is in flight"))
}
