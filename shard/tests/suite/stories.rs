//! Runs a published checkpoint through the whole shard, and compares the story with that of the
//! published program.
//!
//! The checkpoint is not part of the repository. `MILLRACE_TEST_DATA` names the folder that
//! contains `stories260k`.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_proto::{
    Admission, FromShard, Row, Sampling, Shutdown, Step, ToShard, frame, from_shard, to_shard,
};

use millrace_shard::{RankPlacement, RouterAddress, ShardOptions, run};

/// "Once upon a time, there was a little girl named Lily."
const PROMPT: [u32; 16] = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426];

/// " She loved to play outside in the park. One day, she saw a big, red ball. …"
const STORY: [u32; 80] = [
    338, 401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265, 282, 295, 433, 426, 385, 328, 432, 358, 394,
    261, 370, 432, 352, 266, 268, 388, 426, 338, 391, 266, 267, 337, 335, 312, 432, 398, 312, 286, 267, 414,
    270, 333, 415, 426, 13, 438, 310, 439, 419, 357, 336, 432, 313, 438, 310, 432, 278, 316, 439, 419, 298,
    414, 267, 265, 282, 295, 433, 426, 436, 317, 286, 296, 418, 269, 279, 292, 416, 439,
];

fn placement(address: RouterAddress) -> RankPlacement {
    RankPlacement { address, secret: None, rank: 0, world_size: 1, previous_pool: None, lifeline: false }
}

fn options() -> ShardOptions {
    ShardOptions { max_step_tokens: 64, max_sequences: 4, threads: Some(2), ..ShardOptions::default() }
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_tell_a_story() {
    let data =
        std::env::var_os("MILLRACE_TEST_DATA").expect("MILLRACE_TEST_DATA names the folder of the test data");
    let folder = PathBuf::from(data).join("stories260k");
    let socket = std::env::temp_dir().join(format!("millrace-stories-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let address = RouterAddress::Unix(socket.clone());
    let shard = thread::spawn(move || {
        let open = || Ok(families::load(&Source::Directory(folder), &Overrides::default())?.into());
        run(&placement(address), &options(), Box::new(open))
    });
    let (mut stream, _) = listener.accept().unwrap();
    std::fs::remove_file(&socket).unwrap();
    let mut scratch = vec![];
    let mut receive = {
        let mut stream = stream.try_clone().unwrap();
        move || frame::read::<FromShard>(&mut stream, &mut scratch).unwrap().message.unwrap()
    };
    let ready = loop {
        match receive() {
            from_shard::Message::Loading(_) => {}
            from_shard::Message::Ready(ready) => break ready,
            other => panic!("{other:?} before ready"),
        }
    };
    assert_eq!((ready.vocab_size, ready.max_sequence_tokens), (512, 512));

    // The prompt in two chunks, then token by token, all sent at once.
    let known = PROMPT.len() as u32;
    let sampling = Some(Sampling { repetition_penalty: 1.0, ..Sampling::default() });
    let admission =
        Admission { slot: 3, tokens: PROMPT.to_vec(), prompt_len: known, sampling, ..Admission::default() };
    let mut ranges = vec![(0, 7), (7, known - 7)];
    ranges.extend((known..known + STORY.len() as u32 - 1).map(|start| (start, 1)));
    for (i, &(start, count)) in ranges.iter().enumerate() {
        // From the last block of the pool downwards.
        let new_blocks: Vec<u32> = (start..start + count)
            .filter(|position| position % 16 == 0)
            .map(|position| ready.num_blocks - 1 - position / 16)
            .collect();
        let admit = if i == 0 { vec![admission.clone()] } else { vec![] };
        let rows = vec![Row { slot: 3, start, count, new_blocks, sample: i > 0, ..Row::default() }];
        let step = Step { id: i as u64, admit, rows, ..Step::default() };
        frame::write(&mut stream, &ToShard { message: Some(to_shard::Message::Step(step)) }).unwrap();
    }
    let shutdown = to_shard::Message::Shutdown(Shutdown {});
    frame::write(&mut stream, &ToShard { message: Some(shutdown) }).unwrap();

    let mut story = vec![];
    for _ in &ranges {
        match receive() {
            from_shard::Message::Output(output) => story.extend(output.sampled.iter().map(|s| s.token)),
            other => panic!("{other:?} instead of an answer"),
        }
    }
    assert_eq!(story, STORY);
    shard.join().unwrap().unwrap();
}
