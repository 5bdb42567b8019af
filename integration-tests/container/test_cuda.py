"""The files of the CUDA image. There is no GPU here, so nothing computes on one."""

import os

import pytest
from conftest import docker, inspect, running

IMAGE = "millrace:cuda"

# Bytes of all layers, not compressed.
MOST_BYTES = 1_500_000_000


def test_the_image_is_below_its_limit():
    size = inspect(IMAGE, ".Size")
    print(f"size of {IMAGE}: {size / 1e6:.0f} MB")
    assert size < MOST_BYTES


def test_the_image_runs_as_the_cpu_image_does():
    config = inspect(IMAGE, ".Config")
    assert config["User"] == "65532:65532" and config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "millrace", "health"]
    assert config["Entrypoint"] == ["millrace"] and config["Cmd"] == ["serve"]
    assert "NVIDIA_VISIBLE_DEVICES=all" in config["Env"]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in config["Env"]
    # The container toolkit refuses older drivers with a sentence, before the program starts.
    assert "NVIDIA_REQUIRE_CUDA=cuda>=13.0" in config["Env"]


@pytest.mark.parametrize(
    "library", ["libcublasLt.so.13", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnccl.so.2"]
)
def test_the_loader_finds_every_library(library):
    """The binary opens them by name, so the loader must know them and all that they need."""
    found = docker("run", "--rm", "--entrypoint=/sbin/ldconfig", IMAGE, "--print-cache")
    (path,) = [line.split(" => ")[1] for line in found.splitlines() if line.strip().startswith(f"{library} ")]
    needed = docker("run", "--rm", "--entrypoint=ldd", IMAGE, path)
    missing = [line.split()[0] for line in needed.splitlines() if "not found" in line]
    # The driver comes from the host.
    assert set(missing) <= {"libcuda.so.1"}, needed


def test_the_binary_opens_the_libraries():
    said = docker("run", "--rm", IMAGE, "doctor")
    print(said)
    lines = {line[9:].split(":")[0]: line for line in said.splitlines() if ":" in line}
    for name in ("cuBLASLt", "NVRTC", "NCCL"):
        (line,) = [line for title, line in lines.items() if name in title]
        assert line.startswith("ok "), line
    if os.environ["MACHINE_CODE"] == "1":
        assert lines["kernels"].startswith("ok "), lines["kernels"]


def test_licences_are_included():
    found = docker("run", "--rm", "--entrypoint=/usr/bin/find", IMAGE, "/usr/local/lib/cuda/doc", "-iname", "*licen*")
    for wheel in ("nvidia_cublas", "nvidia_cuda_nvrtc", "nvidia_nccl"):
        assert wheel in found, found


def test_without_a_gpu_it_serves_on_the_cpu_and_says_why():
    with running(image=IMAGE) as container:
        container.wait_until_ready()
        assert "no NVIDIA driver (libcuda.so.1) found" in container.log()
        container.wait_until("it is healthy", lambda: container.health() == "healthy")
        assert container.stop(60) == 0
