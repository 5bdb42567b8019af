//! Pinned memory, events and graphs, on whatever device is under test.

use std::time::Instant;

use millrace_cuda::ops::activation::{BiasRows, KernelVersion, add_bias};
use millrace_cuda::ops::matmul::{Matmul, matmul};
use millrace_cuda::{Device, Elem, Memory};

use crate::common::own_device;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn put(device: &Device, values: &[f32]) -> Memory {
    device.upload(&raw(values)).unwrap()
}

fn get(device: &Device, memory: &Memory) -> Vec<f32> {
    floats(&device.read(memory.view(Elem::F32)).unwrap())
}

#[test]
fn pinned_memory_goes_there_and_back() {
    let device = own_device();
    let mut pinned = device.pinned(64).unwrap();
    assert!(pinned.iter().all(|&byte| byte == 0));
    pinned[..16].copy_from_slice(b"there and back..");
    let memory = device.allocate(Elem::U8, 16).unwrap();
    device.write_from(memory.view(Elem::U8), &pinned, 0..16).unwrap();
    device.read_into(memory.view(Elem::U8), &mut pinned, 48..64).unwrap();
    let event = device.event().unwrap();
    assert!(event.reached().unwrap(), "an event that was never recorded");
    event.record().unwrap();
    event.wait().unwrap();
    assert!(event.reached().unwrap());
    assert_eq!(&pinned[48..], b"there and back..");
}

#[test]
fn ranges_that_do_not_fit_are_refused() {
    let device = own_device();
    let mut pinned = device.pinned(8).unwrap();
    let memory = device.allocate(Elem::U8, 4).unwrap();
    let view = memory.view(Elem::U8);
    let backwards = std::ops::Range { start: usize::MAX - 3, end: 1 };
    for range in [0..3, 0..5, 5..9, backwards] {
        assert!(device.write_from(view, &pinned, range.clone()).is_err(), "{range:?}");
        assert!(device.read_into(view, &mut pinned, range.clone()).is_err(), "{range:?}");
    }
    device.write_from(view, &pinned, 4..8).unwrap();
}

#[test]
fn streams_wait_for_events_of_each_other() {
    let device = own_device();
    let mut pinned = device.pinned(4).unwrap();
    let (there, done) = (device.event().unwrap(), device.event().unwrap());
    let (memory, out) = (put(&device, &[0.0]), put(&device, &[0.0]));
    for round in 1..20 {
        // The last round's copy has been read, by the main stream.
        done.wait().unwrap();
        pinned.copy_from_slice(&(round as f32).to_le_bytes());
        device.copies().wait_for(&done).unwrap();
        device.copies().write_from(memory.view(Elem::U8), &pinned, 0..4).unwrap();
        device.copies().record(&there).unwrap();
        device.wait_for(&there).unwrap();
        device.copy(memory.view(Elem::F32), out.view(Elem::F32)).unwrap();
        done.record().unwrap();
    }
    assert_eq!(get(&device, &out), [19.0]);
}

#[test]
fn time_passes_between_timed_events() {
    let device = own_device();
    let (start, end, plain) =
        (device.timed_event().unwrap(), device.timed_event().unwrap(), device.event().unwrap());
    let memory = device.allocate(Elem::U8, 1 << 20).unwrap();
    let since = Instant::now();
    start.record().unwrap();
    device.fill(memory.view(Elem::U8), 1).unwrap();
    end.record().unwrap();
    plain.record().unwrap();
    plain.wait().unwrap();
    // The clocks of a GPU and of its host may differ a little.
    let longest = 1.01 * since.elapsed().as_secs_f64() + 1e-3;
    assert!((0.0..longest).contains(&end.seconds_since(&start).unwrap()));
    assert!(plain.seconds_since(&start).is_err());
}

/// A product and a kernel, with what they need in between from the host and back to it.
#[test]
fn a_graph_does_its_work_with_what_memory_holds_now() {
    let device = own_device();
    let (rows, cols) = (3, 4);
    let mut input = device.pinned(rows * cols * 4).unwrap();
    let mut output = device.pinned(rows * cols * 4).unwrap();
    let identity: Vec<f32> = (0..cols * cols).map(|i| f32::from(i % (cols + 1) == 0)).collect();
    let (x, w) = (put(&device, &[0.0; 12]), put(&device, &identity));
    let (bias, out) = (put(&device, &[10.0; 4]), put(&device, &[0.0; 12]));
    let (x, w, bias, out) = (x.view(Elem::F32), w.view(Elem::F32), bias.view(Elem::F32), out.view(Elem::F32));
    let mut work = || {
        device.write_from(x, &input, 0..48)?;
        matmul(&device, &Matmul { rows, inputs: cols, outputs: cols, x, w, out })?;
        add_bias(&device, KernelVersion::Fast, &BiasRows { rows, cols, x: out, bias })?;
        device.read_into(out, &mut output, 0..48)
    };
    work().unwrap();
    device.synchronize().unwrap();
    let graph = device.record(&mut work).unwrap();
    let event = device.event().unwrap();
    for round in 0..3 {
        let values: Vec<f32> = (0..12).map(|i| (i + 100 * round) as f32).collect();
        input.copy_from_slice(&raw(&values));
        graph.replay().unwrap();
        event.record().unwrap();
        event.wait().unwrap();
        let want: Vec<f32> = values.iter().map(|x| x + 10.0).collect();
        assert_eq!(floats(&output), want);
    }
}

#[test]
fn what_is_recorded_is_not_done() {
    let device = own_device();
    let memory = put(&device, &[1.0]);
    let graph = device.record(|| device.fill(memory.view(Elem::U8), 0)).unwrap();
    assert_eq!(get(&device, &memory), [1.0]);
    graph.replay().unwrap();
    assert_eq!(get(&device, &memory), [0.0]);
}

#[test]
fn what_a_graph_cannot_hold_spoils_the_recording() {
    let device = own_device();
    let (memory, two) = (put(&device, &[1.0]), put(&device, &[1.0, 1.0]));
    let (view, two, event) = (memory.view(Elem::F32), two.view(Elem::F32), device.event().unwrap());
    let ones = |rows| Matmul { rows, inputs: 1, outputs: 1, x: two.slice(0..rows), w: view, out: two };
    matmul(&device, &ones(1)).unwrap();
    let forbidden: [(&str, &dyn Fn() -> bool); 9] = [
        ("an allocation", &|| device.allocate(Elem::U8, 1).is_err()),
        ("pinning memory", &|| device.pinned(1).is_err()),
        ("a copy of memory that is not pinned", &|| device.write(view, &[0; 4]).is_err()),
        ("a copy that waits", &|| device.read(view).is_err()),
        ("a wait", &|| device.synchronize().is_err()),
        ("an event", &|| event.record().is_err()),
        ("a wait for an event", &|| event.wait().is_err()),
        ("a first", &|| {
            let one = BiasRows { rows: 1, cols: 1, x: view, bias: view };
            add_bias(&device, KernelVersion::Plain, &one).is_err()
        }),
        ("a product of a new shape", &|| matmul(&device, &ones(2)).is_err()),
    ];
    for (what, ask) in forbidden {
        // An error that nobody looks at is one all the same.
        let refused = device.record(|| {
            assert!(ask(), "{what}");
            Ok(())
        });
        let said = refused.unwrap_err().to_string();
        assert!(said.contains(what) && said.contains("while a graph is recorded"), "{said}");
    }
    // The device is as good as before.
    device.record(|| device.fill(view, 0)).unwrap().replay().unwrap();
    assert_eq!(get(&device, &memory), [0.0]);
}

#[test]
fn a_failed_recording_leaves_the_device_as_it_was() {
    let device = own_device();
    let memory = put(&device, &[1.0]);
    let failed = device.record(|| {
        device.fill(memory.view(Elem::U8), 0)?;
        Err(millrace_backend::Error::Shape("planned".to_owned()))
    });
    assert!(failed.unwrap_err().to_string().contains("planned"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = device.record(|| panic!("planned"));
    }));
    assert!(panicked.is_err());
    assert_eq!(get(&device, &memory), [1.0]);
    drop(device.allocate(Elem::U8, 1).unwrap());
}

/// Memory whose owner is gone is still the graph's.
#[test]
fn a_graph_may_outlive_the_memory_it_was_recorded_with() {
    let device = own_device();
    let out = put(&device, &[0.0]);
    let graph = {
        let mut input = device.pinned(4).unwrap();
        let between = put(&device, &[0.0]);
        input.copy_from_slice(&7f32.to_le_bytes());
        let (between, out) = (between.view(Elem::F32), out.view(Elem::F32));
        device
            .record(|| {
                device.write_from(between, &input, 0..4)?;
                device.copy(between, out)
            })
            .unwrap()
    };
    graph.replay().unwrap();
    assert_eq!(get(&device, &out), [7.0]);
}
