"""The Compose file and the systemd unit."""

import configparser
import json
import pathlib
import shutil
import subprocess
import tomllib

import pytest
import yaml
from conftest import DEPLOY, PATIENCE, flag_names, free_port, running, status, wait_until_ready, with_ports

COMPOSE = DEPLOY / "compose"
UNIT = DEPLOY / "systemd" / "millrace.service"
CONFIG = DEPLOY / "systemd" / "millrace.toml"


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


def seconds(text):
    assert text.endswith("s")
    return int(text[:-1])


def test_compose_confines_every_container(services):
    assert services.keys() == {"millrace", "prometheus", "grafana"}
    for service in services.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert int(service["user"].split(":")[0]) > 0
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert not service["image"].endswith(":latest") and ":" in service["image"]


def test_compose_names_flags_that_exist(services, known_flags):
    assert flag_names(services["millrace"]["command"]) <= known_flags


def test_compose_lets_the_server_drain(services):
    (drain,) = (flag for flag in services["millrace"]["command"] if flag.startswith("--graceful-termination"))
    assert seconds(services["millrace"]["stop_grace_period"]) > int(drain.split("=")[1])


def test_compose_mounts_files_that_exist(services):
    mounts = [mount for name in ("prometheus", "grafana") for mount in services[name]["volumes"]]
    sources = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert len(sources) == 4
    assert all((COMPOSE / source).is_file() for source in sources)


def test_prometheus_asks_the_server_and_grafana_asks_prometheus(services):
    jobs = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())["scrape_configs"]
    targets = [target for job in jobs for entry in job["static_configs"] for target in entry["targets"]]
    assert targets == ["millrace:3000"] and "--port=3000" in services["millrace"]["command"]
    (source,) = yaml.safe_load((COMPOSE / "grafana-datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["isDefault"]
    dashboard = json.loads((COMPOSE / "../../docs/grafana.json").read_text())
    # The dashboard chooses among the data sources of this type.
    assert dashboard["templating"]["list"][0]["query"] == source["type"]
    (provider,) = yaml.safe_load((COMPOSE / "grafana-dashboards.yaml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert any(mount.split(":")[1] == f"{folder}/millrace.json" for mount in services["grafana"]["volumes"])


def test_the_health_check_tells_a_ready_server_from_none(services, binary, tmp_path):
    port, health, log = free_port(), free_port(), tmp_path / "log"
    default = [flag.replace("${MILLRACE_MODEL:-demo}", "demo") for flag in services["millrace"]["command"]]
    arguments = with_ports(default, port=port, health_port=health)
    kind, *command = services["millrace"]["healthcheck"]["test"]
    assert kind == "CMD"
    assert command == ["millrace", "health"]

    # In a container the check reads the arguments of process 1; here the port is a variable.
    def succeeds(checked_port):
        command = [binary, "health", f"--timeout={PATIENCE}"]
        check = subprocess.run(command, env={"HEALTH_PORT": str(checked_port)}, timeout=2 * PATIENCE)
        return check.returncode == 0

    assert not succeeds(health)
    with running([binary, *arguments], log) as process:
        wait_until_ready(process, health, log)
        assert succeeds(health) and not succeeds(free_port())


@pytest.fixture(scope="module")
def unit():
    parser = configparser.ConfigParser(strict=True, interpolation=None, delimiters=["="])
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser


def test_the_unit_lets_the_server_drain(unit):
    service, flags = unit["Service"], tomllib.loads(CONFIG.read_text())
    assert int(service["TimeoutStopSec"]) > flags["graceful-termination-timeout"]
    # With `control-group`, systemd would end the shards together with the server.
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")


def test_the_unit_is_confined(unit):
    service = unit["Service"]
    assert service["ProtectSystem"] == "strict" and service["CapabilityBoundingSet"] == ""
    assert service["NoNewPrivileges"] == service["DynamicUser"] == service["PrivateTmp"] == "yes"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of systemd")
def test_systemd_accepts_the_unit(binary, tmp_path):
    def verify(text):
        # systemd refuses a unit whose program does not exist.
        text = text.replace("/usr/local/bin/millrace", str(pathlib.Path(binary).resolve()))
        (tmp_path / "millrace.service").write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", tmp_path / "millrace.service"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        return [line for line in done.stderr.splitlines() if "millrace.service" in line]

    text = UNIT.read_text()
    assert verify(text) == []
    assert verify(text.replace("ProtectSystem=strict", "ProtectSytem=strict")) != []


def test_the_server_runs_with_the_configuration_of_the_unit(unit, binary, tmp_path):
    program, *arguments = unit["Service"]["ExecStart"].split()
    assert program == "/usr/local/bin/millrace" and arguments[-2:] == ["--config", "/etc/millrace/millrace.toml"]
    port, health, log = free_port(), free_port(), tmp_path / "log"
    command = [binary, *arguments[:-1], CONFIG, f"--port={port}", f"--health-port={health}"]
    with running(command, log) as process:
        wait_until_ready(process, health, log)
        assert status(port, "/info") == 200
