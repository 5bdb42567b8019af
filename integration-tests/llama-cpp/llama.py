"""llama.cpp and its weights: builds its programs in target/llama-cpp, and writes GGUF files there."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "llama-cpp"
PYTHON = WORK / "venv" / "bin" / "python"
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")

VERSION = "0.3.36"
TOOLS = ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-server"]
CMAKE = [
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON", "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_OPENSSL=OFF",
]

# On machines with AMX this version of llama.cpp, built by GCC 12, faults at `ldtilecfg` in its first product by quantized weights. Its kernels
# for AVX-512 are measured there.
WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

# llama-quantize's name of each format.
QUANTIZED = {"bf16": None, "q8_0": "Q8_0", "q4_0": "Q4_0", "q4_k": "Q4_K_S", "q6_k": "Q6_K"}

# Time limits in seconds.
BUILD_LIMIT, FILE_LIMIT = 3 * 3600, 1800


def call(command, limit, **options):
    """Runs a command and returns its standard output. Ends the script if the command fails."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, timeout=limit, text=True, stdout=subprocess.PIPE, **options)
    except subprocess.TimeoutExpired:
        sys.exit(f"{command[0]} took more than {limit} s: {' '.join(command)}")
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed with {done.returncode}: {' '.join(command)}")
    return done.stdout


def install():
    """Makes the virtual environment, once for each version of the requirements."""
    installed = WORK / "venv" / "requirements.txt"
    if installed.exists() and installed.read_text() == REQUIREMENTS.read_text():
        return
    call([sys.executable, "-m", "venv", WORK / "venv"], FILE_LIMIT)
    call([PYTHON, "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS], FILE_LIMIT)
    installed.write_text(REQUIREMENTS.read_text())


def has_amx():
    """Tells whether the CPU has AMX."""
    info = pathlib.Path("/proc/cpuinfo")
    return info.exists() and "amx_tile" in info.read_text()


def build(jobs):
    """Builds llama.cpp. Returns the folder of its programs."""
    source, built = WORK / "src", WORK / "build"
    if not all((built / "bin" / tool).exists() for tool in TOOLS):
        archive = WORK / "sdist" / f"llama_cpp_python-{VERSION}.tar.gz"
        if not archive.exists():
            path = os.pathsep.join([str(PYTHON.parent), os.environ["PATH"]])
            pip = [PYTHON, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
            only = ["--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"]
            call([*pip, "-d", archive.parent, *only], FILE_LIMIT, env={**os.environ, "PATH": path})
        source.mkdir(parents=True, exist_ok=True)
        call(["tar", "xzf", archive, "-C", source, "--strip-components=1"], FILE_LIMIT)
        cmake = [PYTHON.with_name("cmake")]
        flags = [f"-DCMAKE_{language}_FLAGS={WITHOUT_AMX}" for language in ("C", "CXX") if has_amx()]
        call([*cmake, "-S", source / "vendor" / "llama.cpp", "-B", built, *CMAKE, *flags], FILE_LIMIT)
        call([*cmake, "--build", built, "-j", str(jobs), "--target", *TOOLS], BUILD_LIMIT)
    return built / "bin"


def weights(programs, shape, name):
    """Returns the GGUF file of a shape in a format, and writes it if there is none."""
    bf16 = WORK / f"{shape}-bf16.gguf"
    if not bf16.exists():
        call([PYTHON, pathlib.Path(__file__).with_name("shapes.py"), shape, bf16], FILE_LIMIT)
    quantized = QUANTIZED[name]
    if quantized is None:
        return bf16
    path = WORK / f"{shape}-{name}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        call([programs / "llama-quantize", bf16, part, quantized], FILE_LIMIT, stderr=subprocess.DEVNULL)
        part.rename(path)
    return path
