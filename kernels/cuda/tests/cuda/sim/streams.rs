//! Copies that nobody has waited for.

use super::*;

/// The byte in pinned memory that a pending copy will write.
const GARBAGE: u8 = 0xFF;

#[test]
fn a_source_that_is_changed_too_early_arrives_changed() {
    let sim = Sim::new(FiberSchedule::Forward);
    let memory = sim.device.upload(&[0; 4]).unwrap();
    let mut pinned = sim.device.pinned(4).unwrap();
    pinned.copy_from_slice(b"good");
    sim.device.write_from(memory.view(Elem::U8), &pinned, 0..4).unwrap();
    pinned.copy_from_slice(b"evil");
    assert_eq!(sim.device.read(memory.view(Elem::U8)).unwrap(), b"evil");
    // After a wait the host may use the memory again.
    pinned.copy_from_slice(b"good");
    sim.device.write_from(memory.view(Elem::U8), &pinned, 0..4).unwrap();
    let event = sim.device.event().unwrap();
    event.record().unwrap();
    event.wait().unwrap();
    pinned.copy_from_slice(b"evil");
    assert_eq!(sim.device.read(memory.view(Elem::U8)).unwrap(), b"good");
}

#[test]
fn a_target_that_is_read_too_early_holds_garbage() {
    let sim = Sim::new(FiberSchedule::Forward);
    let memory = sim.device.upload(b"text").unwrap();
    let mut pinned = sim.device.pinned(8).unwrap();
    sim.device.read_into(memory.view(Elem::U8), &mut pinned, 2..6).unwrap();
    assert_eq!(pinned[..], [0, 0, GARBAGE, GARBAGE, GARBAGE, GARBAGE, 0, 0]);
    let event = sim.device.event().unwrap();
    event.record().unwrap();
    event.wait().unwrap();
    assert_eq!(pinned[..], *b"\0\0text\0\0");
    // A replay does the same.
    let graph = sim.device.record(|| sim.device.read_into(memory.view(Elem::U8), &mut pinned, 0..4)).unwrap();
    graph.replay().unwrap();
    assert_eq!(pinned[..], [GARBAGE, GARBAGE, GARBAGE, GARBAGE, b'x', b't', 0, 0]);
    sim.device.synchronize().unwrap();
    assert_eq!(pinned[..], *b"textxt\0\0");
}

/// Memory that a copy reads before another one writes it is not garbage.
#[test]
fn memory_that_is_source_and_target_is_read_first() {
    let sim = Sim::new(FiberSchedule::Forward);
    let (a, b) = (sim.device.upload(&[0; 4]).unwrap(), sim.device.upload(b"back").unwrap());
    let mut pinned = sim.device.pinned(4).unwrap();
    pinned.copy_from_slice(b"goes");
    sim.device.write_from(a.view(Elem::U8), &pinned, 0..4).unwrap();
    sim.device.read_into(b.view(Elem::U8), &mut pinned, 0..4).unwrap();
    assert_eq!(sim.device.read(a.view(Elem::U8)).unwrap(), b"goes");
    assert_eq!(pinned[..], *b"back");
}

#[test]
fn nothing_overtakes_a_copy_in_its_stream() {
    let sim = Sim::new(FiberSchedule::Forward);
    let (memory, out) = (sim.put(&[1]), sim.put(&[0]));
    let mut pinned = sim.device.pinned(4).unwrap();
    pinned.copy_from_slice(&2u32.to_le_bytes());
    sim.device.write_from(all(&memory), &pinned, 0..4).unwrap();
    sim.device.copy(all(&memory), all(&out)).unwrap();
    sim.device.fill(all(&memory), 0).unwrap();
    assert_eq!((sim.get(&out), sim.get(&memory)), (vec![2], vec![0]));
}

#[test]
fn without_an_event_a_stream_sees_what_was_there_before() {
    let sim = Sim::new(FiberSchedule::Forward);
    let (memory, out) = (sim.put(&[1]), sim.put(&[0]));
    let mut pinned = sim.device.pinned(4).unwrap();
    pinned.copy_from_slice(&2u32.to_le_bytes());
    sim.device.copies().write_from(all(&memory), &pinned, 0..4).unwrap();
    sim.device.copy(all(&memory), all(&out)).unwrap();
    assert_eq!(sim.get(&out), [1]);
}

#[test]
fn questions_let_time_pass() {
    let sim = Sim::new(FiberSchedule::Forward);
    let memory = sim.put(&[1]);
    let mut pinned = sim.device.pinned(4).unwrap();
    let event = sim.device.event().unwrap();
    for (copies, wanted) in [(1, 1), (29, 1), (30, 2), (100, 4)] {
        for _ in 0..copies {
            sim.device.read_into(all(&memory), &mut pinned, 0..4).unwrap();
        }
        event.record().unwrap();
        let questions = (1..10).find(|_| event.reached().unwrap());
        assert_eq!(questions, Some(wanted), "30 at a time of {copies} copies and the event");
        assert_eq!(pinned[..], 1u32.to_le_bytes());
    }
}

/// A late failure is reported to the waiting caller and to all later ones.
#[test]
fn a_late_failure_is_for_good() {
    let sim = Sim::new(FiberSchedule::Forward);
    let memory = sim.put(&[1]);
    let mut pinned = sim.device.pinned(4).unwrap();
    sim.device.read_into(all(&memory), &mut pinned, 0..4).unwrap();
    sim.run("nothing", block(1), &output(&memory)).unwrap();
    let event = sim.device.event().unwrap();
    event.record().unwrap();
    for _ in 0..2 {
        assert!(event.wait().unwrap_err().to_string().contains("no kernel of the name nothing"));
    }
    assert!(sim.device.fill(all(&memory), 0).is_err());
}

/// A stream that nobody waits for executes its oldest operations when it is full.
#[test]
fn a_stream_is_bounded() {
    let sim = Sim::new(FiberSchedule::Forward);
    let memory = sim.put(&[0]);
    let mut pinned = sim.device.pinned(4).unwrap();
    sim.device.read_into(all(&memory), &mut pinned, 0..4).unwrap();
    for _ in 0..2000 {
        sim.device.fill(all(&memory), 7).unwrap();
    }
    assert_eq!(pinned[..], [0; 4], "it has been read, before the first fill");
}
