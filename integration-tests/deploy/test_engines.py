"""The definitions for KServe, SkyPilot and the events of the chart, with the real server."""

import json
import socket
import subprocess
from contextlib import ExitStack

import helm_python
import kubernetes_validate
import pytest
import yaml
from conftest import DEPLOY, OPENER, PATIENCE, flag_names, free_port, running, status, wait_until_ready, with_ports
from test_chart import CHART, KUBERNETES, container, pod_templates, render

KSERVE = DEPLOY / "kserve"
SKYPILOT = DEPLOY / "skypilot" / "millrace.yaml"


@pytest.fixture(scope="module")
def runtime():
    return yaml.safe_load((KSERVE / "servingruntime.yaml").read_text())


@pytest.fixture
def path_with_millrace(binary, tmp_path):
    """A value of PATH with the built server as `millrace`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "millrace").symlink_to(binary)
    return f"{tmp_path / 'bin'}:/usr/bin:/bin"


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_pod_of_the_kserve_runtime_is_valid(runtime, version):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    spec = {name: runtime["spec"][name] for name in ["containers", "volumes"]}
    kubernetes_validate.validate({**pod, "spec": spec}, version, strict=True)


def test_the_service_of_kserve_finds_the_runtime(runtime):
    service = yaml.safe_load((KSERVE / "inferenceservice.yaml").read_text())
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in [known["name"] for known in runtime["spec"]["supportedModelFormats"]]


def test_the_server_runs_with_the_arguments_of_kserve(runtime, binary, known_flags, tmp_path):
    (only,) = runtime["spec"]["containers"]
    assert only["name"] == "kserve-container" and flag_names(only["args"]) <= known_flags
    port, health, log = free_port(), free_port(), tmp_path / "log"
    arguments = [argument.replace("{{.Name}}", "llm") for argument in only["args"]]
    arguments = with_ports(arguments, model_id="demo", hostname="127.0.0.1", port=port, health_port=health)
    with running([binary, *arguments], log) as process:
        wait_until_ready(process, health, log)
        with OPENER.open(f"http://127.0.0.1:{port}/v2/models/llm", timeout=PATIENCE) as answer:
            assert json.load(answer)["name"] == "llm"


@pytest.mark.parametrize("machines", [1, 2])
def test_the_script_of_skypilot_starts_the_server(machines, path_with_millrace, tmp_path):
    task = yaml.safe_load(SKYPILOT.read_text())
    assert set(task) == {"service", "resources", "num_nodes", "envs", "run"} and task["resources"]["ports"] == [3000]
    assert "--port 3000" in task["run"] and "--hostname 0.0.0.0" in task["run"]
    ports = [free_port() for _ in range(machines)]
    variables = {
        **task["envs"],
        "PATH": path_with_millrace,
        "SKYPILOT_NUM_NODES": str(machines),
        "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * machines),
        "LEADER_PORT": str(free_port()),
        "MILLRACE_GROUP_SECRET": "a secret of the group for this test" if machines > 1 else "",
    }
    with ExitStack() as machine_stack:
        # The leader is the last to start and the first to end.
        for rank, port in reversed(list(enumerate(ports))):
            script = task["run"].replace("--port 3000", f"--port {port}").replace("0.0.0.0", "127.0.0.1")
            log = tmp_path / f"log{rank}"
            command = ["bash", "-euo", "pipefail", "-c", script]
            process = machine_stack.enter_context(
                running(command, log, SKYPILOT_NODE_RANK=str(rank), **variables)
            )
        wait_until_ready(process, ports[0], log)
        assert status(ports[0], task["service"]["readiness_probe"]["path"]) == 200


def test_the_server_publishes_the_events_of_the_chart(binary, tmp_path):
    with helm_python.Chart.load(CHART) as chart:
        port, health, events, replay = (free_port() for _ in range(4))
        values = {"kvEvents": {"enabled": True, "port": events, "replayPort": replay}}
        (template,) = pod_templates(render(chart, values))
    pod = container(template)
    (address,) = [variable for variable in pod["env"] if variable["name"] == "POD_IP"]
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    log = tmp_path / "log"
    arguments = [argument.replace("$(POD_IP)", "127.0.0.1") for argument in pod["args"]]
    (config,) = [json.loads(text.split("=", 1)[1]) for text in arguments if text.startswith("--kv-events-config=")]
    assert config["topic"] == "kv@127.0.0.1:3000@demo"
    arguments = with_ports(arguments, hostname="127.0.0.1", port=port, health_port=health)
    with running([binary, *arguments], log) as process:
        wait_until_ready(process, health, log)
        for port in (events, replay):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
                # The signature and version of ZeroMQ's protocol.
                assert peer.recv(11, socket.MSG_WAITALL) == b"\xff" + bytes(8) + b"\x7f\x03"


def test_the_example_for_ray_is_python():
    subprocess.run(["python3", "-m", "py_compile", DEPLOY / "ray" / "serve_millrace.py"], check=True, timeout=PATIENCE)
