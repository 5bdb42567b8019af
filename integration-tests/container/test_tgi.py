"""Deployments of text-generation-inference in which only the name of the image is changed."""

import json
import pathlib
import shlex
import subprocess

import pytest
import yaml
from conftest import IMAGE, PATIENCE, docker, generate, request, status, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
TGI = "ghcr.io/huggingface/text-generation-inference:3.3.4"
# The documentation of TGI starts its image like this. `--gpus all` is left out on a CPU.
RUN = f"""
docker run --shm-size 1g -p 8080:80 -v $volume:/data \\
    {TGI} \\
    --model-id $model
"""
# The same with limits and variables, as users write it.
RUN_WITH_VARIABLES = f"""
docker run --shm-size 1g -p 8080:80 -v $volume:/data \\
    -e HF_TOKEN=$token -e MODEL_ID=$model -e MAX_TOTAL_TOKENS=512 \\
    {TGI} --max-concurrent-requests 64 --num-shard 2 --json-output
"""
COMPOSE = f"""
services:
  tgi:
    image: {TGI}
    command: --model-id $model --max-total-tokens 512
    ports:
      - "8080:80"
    volumes:
      - $volume:/data
    environment:
      - HF_TOKEN=$token
      - NUM_SHARD=1
    shm_size: 1g
"""
MODEL = "millrace-tests/demo"


def replaced(text, volume):
    """Changes the name of the image, and fills in what a user fills in."""
    assert text.count(TGI) == 1
    text = text.replace(TGI, IMAGE).replace("$volume", str(volume))
    return text.replace("$model", MODEL).replace("$token", "hf_none")


@pytest.fixture
def volume(tmp_path):
    """The volume of a server of TGI that has downloaded the model: root's files, in the hub's layout."""
    repository = tmp_path / "data" / f"models--{MODEL.replace('/', '--')}"
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    for number, file in enumerate(sorted((ROOT / "models" / "demo").iterdir())):
        if file.suffix in (".json", ".safetensors"):
            blob = repository / "blobs" / f"{number:040x}"
            blob.write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    # pytest's folders are for their owner alone, and the server is another user.
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.name.startswith("pytest-"):
            folder.chmod(0o755)
    return tmp_path / "data"


def check(name, limit):
    """Asks the server on port 8080 as a client of TGI does."""
    log = lambda: docker("logs", name, check=False)
    wait_until("the server is ready", lambda: status(8080, "/health") == 200 and status(8080, "/ready") == 200, log)
    info = json.loads(request(8080, "GET", "/info").read())
    assert (info["model_id"], info["max_total_tokens"]) == (MODEL, limit), info
    assert len(generate(8080, "Once upon a time", 20)) > 20


@pytest.mark.parametrize(("line", "limit"), [(RUN, 1024), (RUN_WITH_VARIABLES, 512)])
def test_a_line_of_docker_run(volume, line, limit):
    words = shlex.split(replaced(line, volume).replace("\\\n", " "))
    assert words[:2] == ["docker", "run"]
    name = docker("run", "--detach", *words[2:])
    try:
        check(name, limit)
        docker("stop", "--time=60", name)
        assert docker("inspect", "--format={{.State.ExitCode}}", name) == "0", docker("logs", name)
    finally:
        docker("rm", "--force", name)


def test_a_pod_that_names_tgis_launcher():
    said = subprocess.run(
        ["/usr/bin/docker", "run", "--rm", "--entrypoint=text-generation-launcher", IMAGE, "--model-id", "/none"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert said.returncode == 1 and "/none" in said.stderr, said


def test_a_compose_file(volume, tmp_path):
    text = replaced(COMPOSE, volume)
    assert yaml.safe_load(text)["services"]["tgi"]["image"] == IMAGE
    (tmp_path / "compose.yaml").write_text(text)
    compose = ["docker-compose", "--file", tmp_path / "compose.yaml", "--project-name", "tgi-test"]
    try:
        subprocess.run([*compose, "up", "--detach"], check=True, timeout=PATIENCE)
        check("tgi-test_tgi_1", 512)
    finally:
        subprocess.run([*compose, "down", "--timeout", "60"], check=True, timeout=PATIENCE)
