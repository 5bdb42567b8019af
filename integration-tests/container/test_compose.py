"""deploy/compose/compose.yaml, as far as its images are here: the server alone."""

import pathlib
import subprocess

import pytest
import yaml
from conftest import IMAGE, PATIENCE, docker, generate, inspect, wait_until

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "compose"


@pytest.fixture
def compose(tmp_path):
    """Debian's Compose 1.29 does not know three settings, which change nothing here: the name of the
    project, the interval of checks during the start, and that the models' folder is made."""
    file = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    del file["name"]
    server = file["services"]["millrace"]
    assert server["image"] == IMAGE
    del server["healthcheck"]["start_interval"]
    (models,) = server["volumes"]
    assert models.pop("bind") == {"create_host_path": True}
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump({"services": {"millrace": server}}))
    (tmp_path / "models").mkdir()
    return ["docker-compose", "--file", tmp_path / "compose.yaml", "--project-name", "compose-test"]


def test_the_server_of_the_compose_file_becomes_healthy_and_drains(compose):
    name = "compose-test_millrace_1"
    try:
        subprocess.run([*compose, "up", "--detach"], check=True, timeout=PATIENCE)
        log = lambda: docker("logs", name, check=False)
        wait_until("it is healthy", lambda: inspect(name, ".State.Health.Status") == "healthy", log)
        assert len(generate(3000, "Once upon a time", 20)) > 20
        subprocess.run([*compose, "stop"], check=True, timeout=PATIENCE)
        assert inspect(name, ".State.ExitCode") == 0, log()
    finally:
        subprocess.run([*compose, "down"], check=True, timeout=PATIENCE)
