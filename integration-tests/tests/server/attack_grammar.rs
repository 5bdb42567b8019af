//! Tests hostile grammars. Each costs its client an error and the server some seconds of CPU time.
//! The server's memory stays bounded, other clients are served meanwhile, and no work is left
//! afterwards.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use millrace_integration_tests::{
    Attack, JsonResponse, Server, attack, cpu_seconds, cpu_seconds_of_ended_children, grammar_workers_of,
    post, private_bytes, raw_post, signal, stream, wait_for_end_of,
};
use serde_json::{Value, json};

/// The CPU time in seconds that one hostile grammar may cost the router and its workers together. A
/// worker ends after two seconds.
const MAX_CPU_SECONDS: f64 = 6.0;
/// The memory in bytes by which the router may grow during the test.
const MAX_GROWTH: u64 = 600 << 20;

fn ask(server: &Server, kind: &str, text: &str) -> JsonResponse {
    let parameters = json!({"grammar": {"type": kind, "value": text}, "max_new_tokens": 4});
    post(&server.url("/generate"), &json!({"inputs": "a", "parameters": parameters}))
}

/// Returns a schema with combined patterns. Deciding whether any text matches takes all memory.
fn all_of(patterns: usize) -> Value {
    let pattern = |i: usize| json!({"pattern": format!("^(.*[a-c].{{{}}}[d-f].*)$", 5 + i)});
    json!({"type": "string", "allOf": (0..patterns).map(pattern).collect::<Vec<_>>()})
}

fn chain(length: usize) -> String {
    let links: String = (0..length).map(|i| format!("T{i}: \"a\" T{}\n", i + 1)).collect();
    format!("start: T0\n{links}T{length}: \"b\"\n")
}

/// Returns a grammar that passes all bounds and still exceeds a worker's limits. Its expression has
/// a state for each remainder: a hundred million states exceed the memory, and a million exceed the
/// CPU time.
fn beyond_the_limits(seed: usize) -> String {
    let divisor = [99_999_989, 999_983, 99_999_971, 999_979][seed];
    json!({"type": "integer", "multipleOf": divisor}).to_string()
}

#[test]
fn hostile_grammars_cost_an_error_and_nothing_else() {
    let server = Server::start(&[]);
    let good = || ask(&server, "regex", "[0-9]{2}");
    assert_eq!(good().status, 200);
    let before = private_bytes(server.pid());
    let braces = "{".repeat(1_900_000);
    let bombs = [
        ("lark", format!("start: %json {}", all_of(40))),
        ("lark", format!("start: %lark {{\n start: %json {}\n}}\n", all_of(40))),
        ("lark", chain(15_000)),
        ("regex", braces.clone()),
        ("regex", braces.clone()),
        ("lark", braces),
        ("json", beyond_the_limits(0)),
        ("json", beyond_the_limits(1)),
        ("json", beyond_the_limits(0)),
    ];
    let over = AtomicBool::new(false);
    let cpu_before = cpu_seconds_with_workers(&server);
    let healthy = std::thread::scope(|scope| {
        let health = scope.spawn(|| {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                assert_eq!(server.get("/health").0, 200);
                count += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            count
        });
        let attacks: Vec<_> = bombs
            .iter()
            .map(|(kind, text)| {
                let server = &server;
                scope.spawn(move || ask(server, kind, text))
            })
            .collect();
        for ((kind, text), attack) in bombs.iter().zip(attacks) {
            let name: String = text.chars().take(60).collect();
            let answer = attack.join().unwrap();
            // The server refuses expensive grammars for now when there are too many at a time.
            assert!(matches!(answer.status, 422 | 429), "{kind} {name}: {} {}", answer.status, answer.body);
        }
        over.store(true, Ordering::Relaxed);
        health.join().unwrap()
    });
    let spent = cpu_seconds_with_workers(&server) - cpu_before;
    println!("{} grammars cost {spent:.1} s of CPU time; /health was answered {healthy} times", bombs.len());
    assert!(spent < MAX_CPU_SECONDS * bombs.len() as f64, "{spent:.1} s of CPU time");
    // A probe that waits for a grammar would be answered once or twice.
    assert!(healthy >= 5, "/health was answered {healthy} times");
    // A single expensive grammar is not deferred. It is refused for good, and the second time
    // without a worker.
    let bomb = beyond_the_limits(2);
    // The router may still be compiling another grammar that took its worker nearly all of its
    // time.
    server.wait_until("the grammar is tried", |server| ask(server, "json", &bomb).status != 429);
    let killed = killed_workers(&server);
    assert_eq!(ask(&server, "json", &bomb).status, 422);
    assert!(killed >= 1.0);
    assert_eq!(killed_workers(&server), killed, "the refusal is remembered");

    let grown = private_bytes(server.pid()).saturating_sub(before);
    assert!(grown < MAX_GROWTH, "the router has {} MiB more", grown >> 20);
    nothing_is_computed(&server);
    assert_eq!(good().status, 200);
    assert_eq!(ask(&server, "regex", "[a-z]{3} new").status, 200);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// Returns the number of workers that were killed.
fn killed_workers(server: &Server) -> f64 {
    let (_, metrics) = server.get("/metrics");
    let lines = metrics.lines().filter(|line| line.starts_with("millrace_grammar_workers_killed_total{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Returns the CPU time in seconds of the router, of its workers, and of the workers that have
/// ended.
fn cpu_seconds_with_workers(server: &Server) -> f64 {
    let workers = grammar_workers_of(server.pid());
    let running = workers.into_iter().map(cpu_seconds).sum::<f64>();
    cpu_seconds(server.pid()) + cpu_seconds_of_ended_children(server.pid()) + running
}

/// Checks that neither the router nor a worker uses the CPU. Other processes on the machine do not
/// matter.
fn nothing_is_computed(server: &Server) {
    server.wait_until("nothing is computed any more", |server| {
        let before = cpu_seconds_with_workers(server);
        std::thread::sleep(Duration::from_millis(500));
        cpu_seconds_with_workers(server) - before < 0.1
    });
}

/// Returns a grammar whose masks take some milliseconds each, because hundreds of expressions may
/// match.
fn heavy(seed: u32) -> String {
    let mut random = seed;
    let mut letters = || {
        let letter = |_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'a' + (random >> 16) as u8 % 26)
        };
        (0..9).map(letter).collect::<String>()
    };
    let expression = |i: usize| format!("/[^\\n]*[{}].{{{}}}[{}]/", letters(), i % 40, letters());
    let expressions: Vec<_> = (0..300).map(expression).collect();
    format!("start: ({})*\n", expressions.join(" | "))
}

/// If each token of a light request waited for a token of each heavy one, each step would have a
/// row of all nine requests.
#[test]
fn heavy_grammars_do_not_slow_down_light_ones() {
    let server = Server::start(&[]);
    let body = |kind: &str, grammar: &str, tokens: usize| {
        let grammar = json!({"type": kind, "value": grammar});
        let parameters = json!({"grammar": grammar, "max_new_tokens": tokens, "do_sample": true, "seed": 7});
        json!({"inputs": "Once upon a time", "parameters": parameters})
    };
    let url = server.url("/generate_stream");
    let light = || {
        let tokens = stream(&url, &body("regex", "[a-z ]{200}", 60)).count();
        assert!(tokens >= 30, "{tokens}");
    };
    // The first request compiles the grammar.
    light();
    // The rows and the steps so far.
    let work = || {
        ["millrace_step_tokens_total", "tgi_batch_inference_count"]
            .map(|name| server.metric(&format!("{name}{{method=\"decode\"}}")))
    };
    let (over, began) = (AtomicBool::new(false), AtomicUsize::new(0));
    let rows_per_step = std::thread::scope(|scope| {
        for seed in 0..8 {
            let (url, over, began, body) = (&url, &over, &began, &body);
            scope.spawn(move || {
                let events = stream(url, &body("lark", &heavy(seed), 600));
                let mut tokens = events.take_while(|_| !over.load(Ordering::Relaxed));
                began.fetch_add(usize::from(tokens.next().is_some()), Ordering::Relaxed);
                tokens.count()
            });
        }
        server.wait_until("heavy requests run", |_| began.load(Ordering::Relaxed) >= 6);
        let before = work();
        light();
        let after = work();
        over.store(true, Ordering::Relaxed);
        (after[0] - before[0]) / (after[1] - before[1])
    });
    println!("{rows_per_step:.2} rows in a step");
    assert!(rows_per_step < 5.0, "{rows_per_step:.2} rows in a step of nine requests");
}

#[test]
fn workers_inherit_nothing_and_end_with_the_server() {
    let server = Server::start_with_env(&[("A_SECRET_OF_THE_SERVER", "secret")], &[]);
    assert_eq!(ask(&server, "regex", "a").status, 200);
    let workers = grammar_workers_of(server.pid());
    assert!((1..=2).contains(&workers.len()), "{workers:?}");
    for &worker in &workers {
        // The server and the worker inherit the files of this test. All other files would be the
        // server's.
        let inherited = open_files("self");
        let files = open_files(&worker.to_string());
        let of_server: Vec<_> = files[3..].iter().filter(|file| !inherited.contains(file)).collect();
        assert!(of_server.is_empty(), "{of_server:?}");
        assert!(open_files(&server.pid().to_string()).iter().any(|file| file.starts_with("socket:")));
        let environment = std::fs::read_to_string(format!("/proc/{worker}/environ")).unwrap();
        assert!(!environment.contains("secret"), "{environment}");
        assert!(private_bytes(worker) < 200 << 20, "{} MiB", private_bytes(worker) >> 20);
    }
    // Another process may have ended the worker. The next grammar starts a new one.
    workers.iter().for_each(|&worker| signal(worker, "KILL"));
    assert_eq!(ask(&server, "regex", "b").status, 200);
    // The worker is in the middle of a grammar and gets no message from the router.
    let parameters = json!({"grammar": {"type": "json", "value": beyond_the_limits(3)}});
    let body = json!({"inputs": "a", "parameters": parameters}).to_string();
    let (address, request) = (server.address().to_owned(), raw_post("/generate", body.as_bytes()));
    let asked = std::thread::spawn(move || attack(&address, &Attack::Write(request)));
    server.wait_until("a worker is busy", |server| {
        grammar_workers_of(server.pid()).into_iter().any(|worker| cpu_seconds(worker) > 0.5)
            || asked.is_finished()
    });
    let workers = grammar_workers_of(server.pid());
    signal(server.pid(), "KILL");
    let _ = asked.join();
    wait_for_end_of(&workers);
}

/// Returns the targets of the open files of a process, the lowest number first.
fn open_files(pid: &str) -> Vec<String> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut files: Vec<(u32, String)> = folder
        .filter_map(|file| {
            let file = file.unwrap();
            // A file may have been closed meanwhile. The folder itself is one of this process's
            // files.
            let target = std::fs::read_link(file.path()).ok()?;
            Some((file.file_name().to_str()?.parse().ok()?, target.to_str()?.to_owned()))
        })
        .collect();
    files.sort();
    files.into_iter().map(|(_, file)| file).collect()
}
