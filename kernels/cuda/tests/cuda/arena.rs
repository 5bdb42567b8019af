//! Memory that is reserved before it is needed.

use std::sync::Arc;

use millrace_cuda::{ArenaUsage, Device, Driver, Elem, Gpu, Simulated};

use crate::common::is_simulated;

/// The driver of a new device of the kind under test, and that of a simulated one, which counts its
/// allocations.
fn driver() -> (Arc<dyn Driver>, Option<Arc<Simulated>>) {
    if std::env::var_os("MILLRACE_TEST_DEVICE").is_some() {
        return (Arc::new(Gpu::new(0).unwrap()), None);
    }
    let simulated = Arc::new(Simulated::new().unwrap());
    (simulated.clone(), Some(simulated))
}

#[test]
fn pieces_are_aligned_and_do_not_overlap() {
    let (driver, simulated) = driver();
    let device = Device::new(driver.clone());
    device.reserve(10 << 10).unwrap();
    let sizes = [1, 255, 256, 257, 0, 1000];
    let pieces: Vec<_> = sizes.iter().map(|&bytes| device.allocate(Elem::U8, bytes).unwrap()).collect();
    for (i, piece) in pieces.iter().enumerate() {
        let view = piece.view(Elem::U8);
        assert!(view.address().is_multiple_of(256));
        assert_eq!(view.len(), sizes[i]);
        device.fill(view, i as u8).unwrap();
    }
    for (i, piece) in pieces.iter().enumerate() {
        assert!(device.read(piece.view(Elem::U8)).unwrap().iter().all(|&byte| byte == i as u8));
    }
    assert_eq!(
        device.reserved(),
        ArenaUsage { bytes: 10 << 10, used: 256 * (1 + 1 + 1 + 2 + 1 + 4), beyond: 0 }
    );
    assert!(simulated.is_none_or(|simulated| simulated.allocations() == 1));
    // The memory is there for as long as a piece of it is.
    let kept = pieces.into_iter().nth(2).unwrap();
    drop(device);
    assert_eq!(Device::new(driver).read(kept.view(Elem::U8)).unwrap(), [2; 256]);
}

#[test]
fn what_does_not_fit_is_counted() {
    let (driver, simulated) = driver();
    let device = Device::new(driver.clone());
    device.reserve(1024).unwrap();
    let _first = device.allocate(Elem::F32, 200).unwrap();
    let _second = device.allocate(Elem::F32, 1).unwrap();
    assert_eq!(device.reserved(), ArenaUsage { bytes: 1024, used: 1024, beyond: 256 });
    assert!(simulated.is_none_or(|simulated| simulated.allocations() == 2));
    assert!(device.allocate(Elem::U64, usize::MAX).is_err());
}

#[test]
fn a_sealed_device_gives_out_what_is_reserved_and_no_more() {
    if !is_simulated("only a simulated device refuses allocations after it was sealed") {
        return;
    }
    let device = Device::new(Arc::new(Simulated::new().unwrap()));
    device.reserve(256).unwrap();
    device.seal();
    let _piece = device.allocate(Elem::U8, 1).unwrap();
    for refused in [device.allocate(Elem::U8, 1).map(drop), device.pinned(1).map(drop)] {
        assert!(refused.unwrap_err().to_string().contains("after the device was sealed"));
    }
}
