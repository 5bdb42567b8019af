#!/usr/bin/env bash
# Everything that needs a card, in one call of under ten minutes: the kernels against their references, the server's texts against the processor's,
# two ranks on one card, the speed of kernels and server beside the card's limits and beside PyTorch's, and NVIDIA's checkers on some of it. Needs neither Rust nor a network, only what `cargo xtask gpu-pack` has put
# into target/gpu. Logs and figures go to $OUT, else to ./out.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2

pack=$PWD/target/gpu
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
# The tests of the simulated device have nothing to say about a card. One at a time, so that a fault has a name.
step tests 110 "$pack/kernel-tests" --test-threads=1 --skip sim::
step texts 60 python3 integration-tests/gpu/serve.py texts "$pack/millrace" "$out"
step ranks 50 python3 integration-tests/gpu/serve.py ranks "$pack/millrace" "$out"
step bench 90 "$pack/kernel-bench"
step serve 170 python3 integration-tests/gpu/serve.py speed "$pack/millrace" "$out"
step pytorch 60 python3 integration-tests/gpu/torch_bench.py "$out/bench.json" "$out/torch.json"
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

python3 integration-tests/gpu/table.py "$out/bench.json" "$out/torch.json" | tee "$out/table.md"
{
    echo
    cat "$out/serve.log"
} | tee -a "$out/table.md"
echo
grep -h "^test result\|FAILED\|panicked" "$out/tests.log"
printf '%s\n' "${summary[@]}"
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
