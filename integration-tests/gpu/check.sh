#!/usr/bin/env bash
# Everything that needs a card, in one call of under ten minutes: the kernels against their references, the server's texts against the processor's and its
# log-probabilities against PyTorch's, two ranks on one card, the speed of kernels and server beside the card's limits and beside PyTorch's, and NVIDIA's
# checkers on some of it. `check.sh kernels` and `check.sh server` are its halves. Needs neither Rust nor a network, only what `cargo xtask gpu-pack` has put
# into target/gpu. Logs and figures go to $OUT, else to ./out.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2

half=${1:-both}
case $half in both | kernels | server) ;; *) echo "check.sh [kernels|server]" >&2; exit 2 ;; esac
# Seconds after which nothing is begun, and what runs is ended.
budget=580

pack=$PWD/target/gpu
here=integration-tests/gpu
out=${OUT:-$PWD/out}
mkdir -p "$out"
for program in kernel-tests kernel-bench millrace; do
    [ -x "$pack/$program" ] && continue
    echo "there is no target/gpu/$program: run \`cargo xtask gpu-pack\` and bring it here" >&2
    exit 2
done

failed=()
summary=()
# step NAME SECONDS COMMAND…: runs it with a limit, its output in a file of that name.
step() {
    local name=$1 limit=$2 start=$SECONDS code
    shift 2
    [ $((budget - SECONDS)) -ge "$limit" ] || limit=$((budget - SECONDS))
    if [ "$limit" -lt 10 ]; then
        summary+=("$(printf '%-12s no time was left' "$name")")
        failed+=("$name")
        return 1
    fi
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
    summary+=("$(printf '%-12s %4d s  %s' "$name" $((SECONDS - start)) "$([ $code = 0 ] && echo passed || echo "FAILED ($code)")")")
    [ $code = 0 ] || failed+=("$name")
    return $code
}

# cuBLASLt and NVRTC lie where PyTorch's wheels have put them, if nowhere else.
libraries=$(python3 - <<'PYTHON' 2>/dev/null
import glob, os, site
roots = {os.path.dirname(os.path.dirname(__import__("torch").__file__)), *site.getsitepackages()}
print(":".join(sorted({os.path.dirname(f) for r in roots for n in ("cublasLt", "nvrtc") for f in glob.glob(f"{r}/nvidia/**/lib{n}.so*", recursive=True)})))
PYTHON
)
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MILLRACE_TEST_DEVICE=cuda MILLRACE_BENCH_JSON=$out/bench.json

nvidia-smi >"$out/card.log" 2>&1 || { echo "there is no NVIDIA card here" >&2; exit 2; }
if [ "$half" != server ]; then
    # The tests of the simulated device have nothing to say about a card. One at a time, so that a fault has a name.
    step tests 110 "$pack/kernel-tests" --test-threads=1 --show-output --skip sim:: --skip allreduce::
    step bench 80 "$pack/kernel-bench"
fi
if [ "$half" != kernels ]; then
    # In memory if it has the room: 16 GB of weights as a page cache has them.
    room=$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -1)
    [ "${room:-0}" -gt 20 ] && parent=/dev/shm || parent=${TMPDIR:-/tmp}
    model=$(mktemp -d "$parent/llama-8b.XXXXXX") || exit 2
    trap 'rm -rf "$model"' EXIT
    step texts 40 python3 $here/serve.py texts "$pack/millrace" "$out"
    step ranks 40 python3 $here/serve.py ranks "$pack/millrace" "$out"
    step model 60 python3 $here/llama.py write "$model"
    step answers 60 python3 $here/serve.py logits "$pack/millrace" "$out" "$model"
    step logits 40 python3 $here/llama.py logits "$model" "$out/answers.json"
    step pytorch 120 python3 $here/llama.py speed "$model" "$out/llama.json"
    step serve 160 python3 $here/serve.py speed "$pack/millrace" "$out" "$model"
    rm -rf "$model"
fi
if [ "$half" != server ]; then
    step operations 45 python3 $here/torch_bench.py "$out/bench.json" "$out/torch.json"
    if command -v compute-sanitizer >/dev/null; then
        # Some virtual machines hide what it needs.
        if compute-sanitizer "$pack/kernel-tests" --exact norm::short_views_are_refused 2>&1 | grep -q "not supported"; then
            summary+=("compute-sanitizer cannot work on this machine")
        else
            for tool in memcheck racecheck; do
                step "$tool" 30 compute-sanitizer --tool "$tool" --error-exitcode 9 \
                    env MILLRACE_TEST_SEED=1 "$pack/kernel-tests" --test-threads=1 --skip sim:: random
            done
        fi
    fi
fi

if [ "$half" != server ]; then
    # The last step, because ranks on one card may wait for each other until their patience ends. Nothing is loaded while they do, and each of their
    # streams has a connection to the card of its own.
    step allreduce 60 env CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32 "$pack/kernel-tests" --test-threads=1 allreduce::
fi

{
    [ ! -e "$out/bench.json" ] || python3 $here/table.py "$out/bench.json" "$out/torch.json"
    echo
    cat "$out/logits.log" "$out/serve.log" 2>/dev/null
} | tee "$out/table.md"
echo
for log in tests allreduce; do
    [ ! -e "$out/$log.log" ] || grep -h "^test result\|FAILED\|panicked\|^skipped: " "$out/$log.log" | sort -u
done
printf '%s\n' "${summary[@]}"
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
