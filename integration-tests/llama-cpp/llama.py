"""llama.cpp and its weights: builds its programs in target/llama-cpp, and writes GGUF files there.

`llama.py FILE` writes the weights in bfloat16 to FILE. It runs in the virtual environment that install() makes.
"""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "llama-cpp"
PYTHON = WORK / "venv" / "bin" / "python"
SHAPE = ROOT / "integration-tests" / "benches" / "llama-1.1b"
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


def write_bf16(path):
    """Writes the shape with random weights. Runs in the virtual environment."""
    import gguf
    import numpy as np

    config = json.loads((SHAPE / "config.json").read_text())
    hidden, width, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    kv = hidden // heads * kv_heads
    part = pathlib.Path(f"{path}.part")
    writer = gguf.GGUFWriter(str(part), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    # The benchmarks use random token ids, so any vocabulary does.
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(f"t{i}" for i in range(259, vocab))])
    writer.add_token_scores([0.0] * vocab)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 + [kinds.NORMAL] * (vocab - 259))

    tensors = {"token_embd": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "attn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden),
            "attn_output": (hidden, hidden), "ffn_norm": (hidden,), "ffn_gate": (width, hidden), "ffn_up": (width, hidden),
            "ffn_down": (hidden, width),
        }
        tensors.update({f"blk.{layer}.{name}": shape for name, shape in shapes.items()})
    tensors.update({"output_norm": (hidden,), "output": (vocab, hidden)})
    kind = {1: gguf.GGMLQuantizationType.F32, 2: gguf.GGMLQuantizationType.BF16}
    for name, shape in tensors.items():
        elements = int(np.prod(shape))
        size = 4 if len(shape) == 1 else 2
        dtype = np.dtype(np.float32 if size == 4 else np.uint16)
        writer.add_tensor_info(f"{name}.weight", list(shape), dtype, size * elements, raw_dtype=kind[len(shape)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(0)
    for shape in tensors.values():
        if len(shape) == 1:
            values = np.ones(shape, np.float32)
        else:
            values = random.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
            # The upper half of a float32 is a bf16.
            values = (values.view(np.uint32) >> 16).astype(np.uint16)
        writer.write_tensor_data(values)
    writer.close()
    part.rename(path)


def weights(programs, name):
    """Returns the GGUF file of a format, and writes it if there is none."""
    bf16 = WORK / "llama-1.1b-bf16.gguf"
    if not bf16.exists():
        call([PYTHON, __file__, bf16], FILE_LIMIT)
    quantized = QUANTIZED[name]
    if quantized is None:
        return bf16
    path = WORK / f"llama-1.1b-{name}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        call([programs / "llama-quantize", bf16, part, quantized], FILE_LIMIT, stderr=subprocess.DEVNULL)
        part.rename(path)
    return path


if __name__ == "__main__":
    write_bf16(pathlib.Path(sys.argv[1]))
