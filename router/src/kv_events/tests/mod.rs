//! Tests with subscribers that speak ZMTP byte by byte. Real ZeroMQ clients are run by
//! `cargo xtask clients`.

mod config;
mod sockets;

use millrace_scheduler::{AdapterId, CacheEvent, StoredBlocks};
use proptest::prelude::*;

use super::history::{Batch, History, HistoryLimits};
use super::message;

#[test]
fn a_batch_is_encoded_as_by_vllm() {
    let blocks = StoredBlocks {
        parent: Some([1; 16]),
        adapter: None,
        hashes: vec![[2; 16], [3; 16]],
        tokens: vec![5, 300, 70_000, 0],
        block_size: 2,
    };
    let first = StoredBlocks { parent: None, adapter: None, hashes: vec![], tokens: vec![], block_size: 2 };
    let adapted = StoredBlocks { adapter: Some(AdapterId(1)), ..first.clone() };
    let events = [
        CacheEvent::Stored(blocks),
        CacheEvent::Stored(first),
        CacheEvent::Stored(adapted),
        CacheEvent::Removed(vec![[4; 16]]),
        CacheEvent::Cleared,
    ];
    let hash = |byte: u8| [&[0xc4, 16][..], &[byte; 16]].concat();
    let expected = [
        // Three fields, and the time 1.5 as a float of 64 bits.
        &[0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x95][..],
        b"\x97\xabBlockStored\x92",
        &hash(2),
        &hash(3),
        &hash(1),
        &[0x94, 5, 0xcd, 1, 44, 0xce, 0, 1, 0x11, 0x70, 0, 2, 0xc0],
        b"\xa3GPU",
        b"\x97\xabBlockStored\x90\xc0\x90\x02\xc0\xa3GPU",
        // `lora_id` begins with 1, and `lora_name` is the last field.
        b"\x98\xabBlockStored\x90\xc0\x90\x02\x02\xa3GPU\xa6polite",
        b"\x93\xacBlockRemoved\x91",
        &hash(4),
        b"\xa3GPU",
        b"\x91\xb0AllBlocksCleared",
        &[0],
    ];
    let name = |AdapterId(id)| (id == 1).then(|| "polite".to_owned());
    assert_eq!(message::encode(1.5, &events, &name), expected.concat());
}

proptest! {
    #[test]
    fn the_history_keeps_the_newest_batches_within_its_limits(
        sizes in prop::collection::vec(0usize..40, 0..60),
        batches in 1usize..20,
        bytes in 1usize..200,
        wanted in 0u64..70,
    ) {
        let history = History::new(HistoryLimits { batches, bytes });
        for (number, size) in sizes.iter().enumerate() {
            history.push(vec![number as u8; *size].into());
        }
        let fits = |first: &usize| {
            let kept = &sizes[*first..];
            kept.len() <= batches && kept.iter().sum::<usize>() <= bytes
        };
        let first = (0..=sizes.len()).find(fits).unwrap();
        let number = wanted.max(first as u64);
        let expected = sizes.get(number as usize);
        let expected = expected.map(|size| Batch { number, payload: vec![number as u8; *size].into() });
        prop_assert_eq!(history.at_or_after(wanted), expected);
        prop_assert_eq!(*history.next().borrow(), sizes.len() as u64);
    }
}
