"""The CPU image: its size, its user, its limits, and its first process."""

import json
import os
import signal
import subprocess
import time

import pytest
from conftest import (
    CONFINED,
    IMAGE,
    PATIENCE,
    body,
    docker,
    generate,
    inspect,
    request,
    running,
    status,
    stream,
    text_of,
    wait_until,
)

# Bytes of all layers, not compressed.
MOST_BYTES = 80_000_000


def test_the_image_is_small():
    size = inspect(IMAGE, ".Size")
    print(f"size of {IMAGE}: {size / 1e6:.1f} MB")
    assert size < MOST_BYTES


def test_the_image_names_user_signal_and_health_check():
    config = inspect(IMAGE, ".Config")
    assert config["User"] == "65532:65532" and config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "millrace", "health"]
    assert config["Entrypoint"] == ["millrace"] and config["Cmd"] == ["serve"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"] and len(labels["org.opencontainers.image.revision"]) == 40


def test_the_image_has_nothing_but_the_server():
    files = docker("run", "--rm", "--entrypoint=/bin/sh", IMAGE, "-c", "ls", check=False)
    assert files == "", "the image has a shell"
    name = docker("create", IMAGE)
    try:
        listing = subprocess.run(
            f"/usr/bin/docker export {name} | tar --list", shell=True, capture_output=True, text=True, check=True
        ).stdout.split()
    finally:
        docker("rm", name)
    for wanted in [
        "usr/local/bin/millrace",
        "usr/local/bin/text-generation-launcher",
        "etc/ssl/certs/ca-certificates.crt",
        "usr/share/doc/millrace/LICENSE",
        "usr/share/doc/libc6/copyright",
        "var/lib/dpkg/status.d/libc6",
        "data/",
        "tmp/",
    ]:
        assert wanted in listing, f"{wanted} is not in {listing}"
    programs = [file for file in listing if "bin/" in file and not file.endswith("/")]
    assert len(programs) == 2, programs


@pytest.fixture(scope="module")
def server():
    with running() as container:
        container.wait_until_ready()
        yield container


def test_a_confined_server_becomes_healthy_and_answers(server):
    server.wait_until("it is healthy", lambda: server.health() == "healthy")
    checks = server.state("Health")["Log"]
    assert checks[-1]["Output"] == "healthy: http://127.0.0.1:80/ready\n", checks
    events = list(stream(server.port, "Once upon a time", 40))
    assert len(events) > 10, "the answer is streamed token by token"
    assert text_of(events) == generate(server.port, "Once upon a time", 40)


def test_curl_streams_an_answer(server):
    """The example of the documentation."""
    command = [
        "curl",
        "--silent",
        "--no-buffer",
        "--noproxy",
        "*",
        f"127.0.0.1:{server.port}/v1/chat/completions",
        "--header",
        "content-type: application/json",
        "--data",
        json.dumps({"messages": [{"role": "user", "content": "Tell me a story"}], "stream": True, "max_tokens": 20}),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    assert said.count("data: {") > 5 and "data: [DONE]" in said, said


def test_the_processes_have_no_rights(server):
    pid = server.state("Pid")
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.rstrip().split(":\t", 1) for line in file if ":\t" in line)
    assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {"65532"}
    assert all(int(fields[name], 16) == 0 for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb"))
    assert fields["NoNewPrivs"] == "1"
    assert inspect(server.name, ".HostConfig.ReadonlyRootfs")


def test_cold_start():
    """From `docker run` to the first answered request."""
    since = time.monotonic()
    with running() as container:
        started = time.monotonic()
        wait_until("it is ready", lambda: status(container.port, "/ready") == 200, container.log)
        print(
            f"cold start: {time.monotonic() - since:.2f} s, of which `docker run` took {started - since:.2f} s",
        )


def test_without_a_writable_folder_the_error_says_so():
    name = docker("create", "--read-only", IMAGE)
    try:
        docker("start", name)
        wait_until("it ended", lambda: not inspect(name, ".State.Running"))
        said = subprocess.run(["/usr/bin/docker", "logs", name], capture_output=True, text=True, timeout=PATIENCE)
        assert inspect(name, ".State.ExitCode") == 1
        assert "/tmp" in said.stdout + said.stderr, said
    finally:
        docker("rm", "--force", name)


def test_process_1_waits_for_orphans_and_passes_signals_on(server):
    (first, *_) = server.processes()
    assert first[0] == server.state("Pid") and "shard" not in first[2], server.processes()
    # The server runs in a child of process 1, which only waits for children and passes on signals.
    child = subprocess.run(["ps", "-o", "args=", "--ppid", str(first[0])], capture_output=True, text=True)
    assert child.stdout.startswith("millrace serve"), child.stdout
    # Health checks come and go, and nothing stays.
    assert not any(state.startswith("Z") for _, state, _ in server.processes())


def test_other_commands_run_and_can_be_ended():
    said = docker("run", "--rm", *CONFINED, IMAGE, "inspect", "--model-id", "demo")
    assert "LlamaForCausalLM" in said or "llama" in said.lower(), said
    said = docker("run", "--rm", *CONFINED, IMAGE, "--version")
    assert said.startswith("millrace "), said
    # As process 1, a command without handlers would not be ended by a signal.
    with running("--interactive", arguments=["generate"]) as container:
        container.wait_until("it runs", lambda: len(container.processes()) > 1)
        docker("kill", "--signal=TERM", container.name)
        wait_until("it ended", lambda: not container.state("Running"))
        assert container.state("ExitCode") == 128 + signal.SIGTERM


def test_an_exit_code_is_passed_on():
    done = subprocess.run(
        ["/usr/bin/docker", "run", "--rm", *CONFINED, IMAGE, "--model-id", "/nowhere/model"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1 and "/nowhere/model" in done.stderr, done


def test_a_server_that_docker_init_starts_is_found():
    with running("--init", arguments=["--port", "80", "--health-port", "8081"]) as container:
        container.wait_until("it is healthy", lambda: container.health() == "healthy")
        assert container.state("Health")["Log"][-1]["Output"] == "healthy: http://127.0.0.1:8081/ready\n"
        assert container.stop(60) == 0


def test_the_health_check_follows_the_arguments():
    name = docker("run", "--detach", *CONFINED, IMAGE, "--port", "8123", "--hostname", "127.0.0.1")
    try:
        health = lambda: inspect(name, ".State.Health")
        wait_until("it is healthy", lambda: health()["Status"] == "healthy")
        assert health()["Log"][-1]["Output"] == "healthy: http://127.0.0.1:8123/ready\n"
    finally:
        docker("rm", "--force", name)


def test_a_stopped_container_finishes_its_stream():
    patient = ["--heartbeat-timeout", "86400", "--graceful-termination-timeout", "86400"]
    with running(arguments=["--device", "null", "--null-step-micros", "20000", *patient]) as container:
        container.wait_until_ready()
        events = stream(container.port, "a", 150)
        first = [next(events) for _ in range(3)]
        # The stopped shard keeps the server draining until the test has seen it.
        (shard,) = container.shards()
        os.kill(shard, signal.SIGSTOP)
        stopping = subprocess.Popen(["/usr/bin/docker", "stop", "--time=86400", container.name], stdout=subprocess.DEVNULL)
        # While it drains, it is not ready and accepts nothing more.
        container.wait_until("it drains", lambda: status(container.port, "/ready") == 503)
        assert request(container.port, "POST", "/generate", body("b", 1)).status == 503
        os.kill(shard, signal.SIGCONT)
        rest = list(events)
        assert len(first) + len(rest) == 150 and rest[-1]["generated_text"], rest[-1]
        assert stopping.wait(timeout=PATIENCE) == 0
        assert (container.state("ExitCode"), container.state("OOMKilled")) == (0, False)
        assert "all requests have ended" in container.log()


def test_the_engine_kills_a_server_that_needs_longer_than_its_grace():
    with running(arguments=["--device", "null", "--null-step-micros", "200000"]) as container:
        container.wait_until_ready()
        events = stream(container.port, "a", 500)
        next(events)
        assert container.stop(1) == 128 + signal.SIGKILL
        events.close()


