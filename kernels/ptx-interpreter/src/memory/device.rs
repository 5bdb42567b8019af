//! Device memory: allocations between gaps that nobody may touch.

use crate::MemoryError;

/// The address of the first allocation.
const FIRST: u64 = 0x10_0000_0000;
/// Alignment of allocations, and the least gap between two.
const ALIGNMENT: u64 = 256;
/// The value of memory that nobody has written: a NaN in every format.
const FRESH: u8 = 0xff;

/// Memory that kernels can access. Addresses are never used twice, so that an access to memory that
/// was freed is found.
#[derive(Debug)]
pub struct DeviceMemory {
    /// In the order of their addresses.
    allocations: Vec<Allocation>,
    next: u64,
    left: usize,
    /// The index of the allocation that was used last.
    last: usize,
}

#[derive(Debug)]
struct Allocation {
    at: u64,
    bytes: Vec<u8>,
}

impl DeviceMemory {
    /// Makes memory of at most `bytes` bytes, without allocations.
    pub fn new(bytes: usize) -> DeviceMemory {
        DeviceMemory { allocations: Vec::new(), next: FIRST, left: bytes, last: 0 }
    }

    /// Allocates `bytes` bytes, aligned to 256, and returns their address. All their bits are set.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`]
    pub fn allocate(&mut self, bytes: usize) -> Result<u64, MemoryError> {
        if bytes > self.left {
            return Err(MemoryError::OutOfMemory { asked: bytes, left: self.left });
        }
        self.left -= bytes;
        let at = self.next;
        self.next += (bytes as u64).next_multiple_of(ALIGNMENT) + ALIGNMENT;
        self.allocations.push(Allocation { at, bytes: vec![FRESH; bytes] });
        Ok(at)
    }

    /// Frees the allocation at an address.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] if no allocation begins there.
    pub fn free(&mut self, at: u64) -> Result<(), MemoryError> {
        let found = self.allocations.binary_search_by_key(&at, |allocation| allocation.at);
        let index = found.map_err(|_| MemoryError::OutOfRange { address: at, bytes: 0 })?;
        self.left += self.allocations.remove(index).bytes.len();
        Ok(())
    }

    /// Copies from device memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]
    pub fn read(&mut self, from: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        to.copy_from_slice(self.slice(from, to.len())?);
        Ok(())
    }

    /// Copies to device memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]
    pub fn write(&mut self, to: u64, from: &[u8]) -> Result<(), MemoryError> {
        self.slice(to, from.len())?.copy_from_slice(from);
        Ok(())
    }

    /// The bytes of a range, which must lie in one allocation.
    pub(crate) fn slice(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], MemoryError> {
        let index = if self.allocations.get(self.last).is_some_and(|a| a.contains(address, bytes)) {
            self.last
        } else {
            let after = self.allocations.partition_point(|allocation| allocation.at <= address);
            let found = after.checked_sub(1).filter(|&i| self.allocations[i].contains(address, bytes));
            found.ok_or(MemoryError::OutOfRange { address, bytes })?
        };
        self.last = index;
        let allocation = &mut self.allocations[index];
        let start = (address - allocation.at) as usize;
        Ok(&mut allocation.bytes[start..start + bytes])
    }
}

impl Allocation {
    fn contains(&self, address: u64, bytes: usize) -> bool {
        address.checked_sub(self.at).is_some_and(|start| {
            let len = self.bytes.len() as u64;
            start <= len && bytes as u64 <= len - start
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_bounded_and_apart() {
        let mut memory = DeviceMemory::new(1000);
        let a = memory.allocate(100).expect("there is room");
        let b = memory.allocate(300).expect("there is room");
        assert!(b >= a + 100 + ALIGNMENT);
        assert_eq!(memory.allocate(601), Err(MemoryError::OutOfMemory { asked: 601, left: 600 }));
        assert!(memory.write(a + 98, &[1, 2]).is_ok());
        assert!(memory.write(a + 99, &[1, 2]).is_err());
        assert!(memory.write(a - 1, &[1]).is_err());
        assert!(memory.write(u64::MAX, &[1]).is_err());
        let mut bytes = [0; 3];
        memory.read(a + 97, &mut bytes).expect("inside");
        assert_eq!(bytes, [FRESH, 1, 2]);
        memory.free(a).expect("it was allocated");
        assert!(memory.read(a, &mut bytes).is_err());
        assert!(memory.free(a).is_err());
        assert!(memory.allocate(700).is_ok());
    }
}
