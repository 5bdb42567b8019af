//! Tests the disk cache: prefixes that have left the KV cache are read from files, also by the next
//! server, and nothing that happens to the files changes an answer.

use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_integration_tests::{JsonResponse, Server, binary, post};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Tokens in a block of the KV cache.
const BLOCK: usize = 16;

/// Flags of a server whose KV cache holds about two of the conversations.
const SMALL: [&str; 4] = ["--max-batch-total-tokens", "640", "--max-total-tokens", "600"];

/// A conversation as one text that grows with each turn.
#[derive(Clone)]
struct Conversation(String);

/// An answer, and what was found of its prompt.
struct Turn {
    details: Value,
    text: String,
    prompt: usize,
    cached: usize,
}

impl Conversation {
    /// Conversations begin differently, so they share no block.
    fn new(number: usize) -> Self {
        let facts = (10..32).map(|n| format!("Guest {number} bought {n} lemons on Monday."));
        Conversation(format!("{} Who bought lemons?", facts.collect::<Vec<_>>().join(" ")))
    }

    /// Asks the server to go on.
    fn turn(&mut self, server: &Server) -> Turn {
        let parameters = json!({"max_new_tokens": 12, "stop": ["\u{1}"], "details": true, "top_n_tokens": 2});
        let answer = post(&server.url("/generate"), &json!({"inputs": self.0, "parameters": parameters}));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let number = |name: &str, of: &JsonResponse| of.header(name).unwrap().parse().unwrap();
        let (prompt, cached) = (number("x-prompt-tokens", &answer), number("x-cached-tokens", &answer));
        let text = answer.body["generated_text"].as_str().unwrap().to_owned();
        self.0 += &format!("{text} And then?");
        Turn { details: answer.body["details"].clone(), text, prompt, cached }
    }
}

/// A folder for a disk cache.
struct Disk(TempDir);

impl Disk {
    fn new() -> Self {
        Disk(tempfile::tempdir().unwrap())
    }

    /// Starts a server with a small KV cache and this disk cache.
    fn serve(&self, flags: &[&str]) -> Server {
        let disk = format!("--kv-disk={},50M", self.0.path().display());
        Server::start(&[&["--device", "cpu", &disk], &SMALL[..], flags].concat())
    }

    /// Starts a server whose disks the test can fill.
    fn serve_until_full(&self) -> Server {
        let disk = format!("--kv-disk={},50M", self.0.path().display());
        Server::start_with_full_disks_to_come(&[&["--device", "cpu", &disk], &SMALL[..]].concat())
    }

    /// The files of the shards.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "kv")).collect()
    }
}

fn plain(flags: &[&str]) -> Server {
    Server::start(&[&["--device", "cpu"], &SMALL[..], flags].concat())
}

fn written(server: &Server) -> f64 {
    server.metric("millrace_kv_disk_written_tokens_total")
}

fn read(server: &Server) -> f64 {
    server.metric("millrace_kv_disk_read_tokens_total")
}

fn failed_reads(server: &Server) -> f64 {
    server.metric("millrace_kv_disk_failed_blocks_total{kind=\"read\"}")
}

/// Takes the first turn of each conversation, and waits until all blocks of its prompt are on disk.
fn first_turns(server: &Server, conversations: &mut [Conversation]) -> Vec<Turn> {
    let mut least = written(server);
    let first = |conversation: &mut Conversation| {
        let turn = conversation.turn(server);
        least += (turn.prompt / BLOCK * BLOCK) as f64;
        server.wait_until("the prompt is on disk", |server| written(server) >= least);
        turn
    };
    conversations.iter_mut().map(first).collect()
}

/// Four conversations take turns. The answers are those of a server without a disk cache, which
/// computes each prompt again.
fn conversations_continue(flags: &[&str]) {
    let disk = Disk::new();
    let (plain, server) = (plain(flags), disk.serve(flags));
    let mut conversations: Vec<Conversation> = (0..4).map(Conversation::new).collect();
    let mut others = conversations.clone();
    let first = first_turns(&server, &mut conversations);
    for round in 0..3 {
        for (index, other) in others.iter_mut().enumerate() {
            let expected = other.turn(&plain);
            if round == 0 {
                assert_eq!(first[index].details, expected.details, "conversation {index}");
                continue;
            }
            let got = conversations[index].turn(&server);
            assert_eq!(got.details, expected.details, "turn {round} of conversation {index}");
            // At least the whole blocks of the first prompt.
            let least = first[index].prompt / BLOCK * BLOCK;
            assert!(got.cached >= least, "{} of {} tokens are cached", got.cached, got.prompt);
            assert!(expected.cached < least, "the KV cache holds all conversations");
        }
    }
    assert!(read(&server) >= 2.0 * 3.0 * 128.0, "{} tokens were read", read(&server));
    assert_eq!(failed_reads(&server), 0.0);
    assert!(server.metric("millrace_kv_disk_blocks") > 4.0 * 8.0);
}

#[test]
fn evicted_conversations_continue_from_disk_with_the_same_answers() {
    conversations_continue(&[]);
}

#[test]
fn all_formats_of_the_kv_cache_survive_the_disk() {
    conversations_continue(&["--kv-cache-dtype", "int8"]);
    conversations_continue(&["--dtype", "bfloat16"]);
}

#[test]
fn several_shards_have_a_file_each() {
    conversations_continue(&["--num-shard", "2"]);
    conversations_continue(&["--pipeline-parallel", "2"]);
}

#[test]
fn the_next_server_uses_the_files_only_if_they_are_kept() {
    let disk = Disk::new();
    let mut conversation = [Conversation::new(7)];
    let again = Conversation::new(7);
    let keep = ["--kv-persist"];
    let server = disk.serve(&keep);
    let first = first_turns(&server, &mut conversation).remove(0);
    assert_eq!(first.cached, 0);
    server.signal("TERM");
    assert!(server.wait().success());
    assert_eq!(disk.files().len(), 1);

    let cached = |server: &Server| {
        let turn = again.clone().turn(server);
        assert_eq!((&turn.text, &turn.details), (&first.text, &first.details));
        turn.cached
    };
    let whole = (first.prompt - 1) / BLOCK * BLOCK;
    let server = disk.serve(&keep);
    assert_eq!(cached(&server), whole);
    assert_eq!(read(&server), whole as f64);
    // The server is killed.
    drop(server);
    assert_eq!(cached(&disk.serve(&keep)), whole);

    // Other numbers in the blocks.
    let other = disk.serve(&["--kv-persist", "--kv-cache-dtype", "int8"]);
    other.wait_for_log("the disk cache begins empty");
    assert_eq!(again.clone().turn(&other).cached, 0);
    drop(other);

    let server = disk.serve(&[]);
    assert_eq!(cached(&server), 0);
    server.signal("TERM");
    assert!(server.wait().success());
    assert_eq!(disk.files(), Vec::<PathBuf>::new());
}

#[test]
fn blocks_on_disk_outlive_the_shards() {
    let disk = Disk::new();
    let server = disk.serve(&["--num-shard", "2"]);
    let mut conversations = [Conversation::new(1)];
    let first = first_turns(&server, &mut conversations).remove(0);
    server.signal_shards("KILL");
    server.wait_for_restarts(1);
    let turn = Conversation::new(1).turn(&server);
    assert_eq!(turn.details, first.details);
    assert_eq!(turn.cached, (first.prompt - 1) / BLOCK * BLOCK);
}

/// Changes the last byte of each piece of a file.
fn damage(path: &Path, piece: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    // The first page is the header, without which there is no cache.
    bytes[4096..].chunks_mut(piece).for_each(|piece| *piece.last_mut().unwrap() ^= 1);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_files_change_no_answer() {
    let disk = Disk::new();
    let server = disk.serve(&["--kv-persist"]);
    let first = first_turns(&server, &mut [Conversation::new(3)]).remove(0);
    server.signal("TERM");
    assert!(server.wait().success());
    let file = disk.files().remove(0);
    let intact = std::fs::read(&file).unwrap();

    for piece in [64, 1000, 100_000] {
        std::fs::write(&file, &intact).unwrap();
        damage(&file, piece);
        let server = disk.serve(&["--kv-persist"]);
        let turn = Conversation::new(3).turn(&server);
        assert_eq!(turn.details, first.details, "every {piece} bytes");
        if piece == 64 {
            assert_eq!(turn.cached, 0, "no header is intact");
        } else if piece == 1000 {
            assert!(failed_reads(&server) >= 1.0 && turn.cached == 0, "every block is damaged");
        }
    }

    // A file that is cut is replaced.
    std::fs::write(&file, &intact[..intact.len() / 3]).unwrap();
    let server = disk.serve(&["--kv-persist"]);
    let turn = Conversation::new(3).turn(&server);
    assert_eq!((turn.cached, turn.details), (0, first.details));
}

#[test]
fn a_full_disk_ends_writing_and_changes_no_answer() {
    let disk = Disk::new();
    let (plain, server) = (plain(&[]), disk.serve_until_full());
    let (mut kept, mut expected) = (Conversation::new(0), Conversation::new(0));
    let first = first_turns(&server, std::slice::from_mut(&mut kept)).remove(0);
    assert_eq!(first.details, expected.turn(&plain).details);

    server.fill_disks(4096);
    for number in 1..4 {
        let (mut conversation, mut other) = (Conversation::new(number), Conversation::new(number));
        for turn in 0..2 {
            assert_eq!(conversation.turn(&server).details, other.turn(&plain).details, "{number} {turn}");
        }
    }
    server.wait_for_log("nothing more is written to the disk cache");
    assert!(server.metric("millrace_kv_disk_failed_blocks_total{kind=\"write\"}") >= 1.0);
    // What was written before is still read.
    let turn = kept.turn(&server);
    assert_eq!(turn.details, expected.turn(&plain).details);
    assert!(turn.cached >= first.prompt / BLOCK * BLOCK && read(&server) >= 1.0, "{}", turn.cached);
}

#[test]
fn a_folder_that_cannot_be_made_is_refused_at_the_start() {
    let flags = ["serve", "--device", "cpu", "--kv-disk=/dev/null/kv,50M"];
    let refused = Command::new(binary()).args(flags).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && said.contains("--kv-disk: cannot create the folder /dev/null/kv"),
        "{said}"
    );
}

#[test]
fn a_model_with_recurrent_layers_has_no_disk_cache() {
    let folder = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/qwen3_5_text");
    let disk = format!("--kv-disk={},50M", folder.path().display());
    let server =
        Server::start_loading(&["--device", "cpu", "--model-id", model, "--load-format", "dummy", &disk]);
    server.wait_for_log("--kv-disk needs a model whose state is all in the KV cache");
    assert!(!server.wait().success());
}
