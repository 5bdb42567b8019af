#!/usr/bin/env bash
# What needs a GPU, on a machine without Rust and without a network: `check.sh [PART…]` unpacks
# target/gpu.tar.xz, which `cargo xtask gpu-pack` makes, and runs all parts or these, in the order
# of `parts` below. No part begins after MILLRACE_CHECK_SECONDS (580), and the running one ends then.
#
# $OUT (default: out) gets the table, the figures as JSON, and an archive of all logs. They are
# written again after each part, so that nothing is lost when the check is ended early.
# MILLRACE_CHECK_DEVICE=cpu tries it out without a GPU: kernels on the simulated GPU, a tiny model on
# the CPU. MILLRACE_CHECK_MODULES names the kernels' benchmarks that run (default: all).
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2

parts=(tests bench serve logits torch ranks allreduce sanitize)
wanted=("${@:-${parts[@]}}")
budget=${MILLRACE_CHECK_SECONDS:-580}
device=${MILLRACE_CHECK_DEVICE:-cuda}
here=integration-tests/gpu
out=${OUT:-$PWD/out}
work=$(mktemp -d) || exit 2
logs=$work/logs
mkdir -p "$out" "$logs"
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1

archive=target/gpu.tar.xz
[ -f $archive ] || { echo "there is no $archive: run \`cargo xtask gpu-pack\` and bring it here" >&2; exit 2; }
# Python can unpack it where there is no xz.
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' $archive "$work" || exit 2


failed=()
# note NAME SECONDS CODE: adds a line to the summary.
note() {
    printf '%-24s %4d s  %s\n' "$1" "$2" "$([ "$3" = 0 ] && echo passed || echo "FAILED ($3)")" | tee -a "$logs/summary.txt"
    [ "$3" = 0 ] || failed+=("$1")
}
# step NAME SECONDS COMMAND…: runs it with a limit, its output in a file of that name.
step() {
    local name=$1 limit=$2 start=$SECONDS code
    shift 2
    [ $((budget - SECONDS)) -ge "$limit" ] || limit=$((budget - SECONDS))
    [ "$limit" -ge 10 ] || { note "$name (no time left)" 0 1; return 1; }
    timeout --kill-after=10 "$limit" "$@" >"$logs/$name.log" 2>&1
    code=$?
    note "$name" $((SECONDS - start)) $code
    return $code
}
# Writes what there is so far.
save() {
    for file in bench.json serve.json torch.json llama.json; do
        [ ! -e "$logs/$file" ] || cp "$logs/$file" "$out/"
    done
    {
        cat "$logs/summary.txt" 2>/dev/null
        [ ! -e "$logs/bench.json" ] || python3 $here/table.py "$logs/bench.json" "$logs/torch.json"
        echo
        # A failure has a long trace, whose end says what it is.
        for log in texts logits serve ranks; do
            [ ! -e "$logs/$log.log" ] || tail -20 "$logs/$log.log" | cut -c1-300
        done
    } >"$out/table.md"
    tar -czf "$out/logs.tgz" -C "$logs" .
}

# Libraries of PyTorch's wheels, if there are none elsewhere.
libraries=$(python3 - <<'PYTHON' 2>/dev/null
import glob, os, site
roots = {os.path.dirname(os.path.dirname(__import__("torch").__file__)), *site.getsitepackages()}
found = {os.path.dirname(f) for r in roots for n in ("cublasLt", "nvrtc", "nccl") for f in glob.glob(f"{r}/nvidia/**/lib{n}.so*", recursive=True)}
print(":".join(sorted(found)))
PYTHON
)
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# A kernel that is loaded while others wait for each other would wait too.
export CUDA_MODULE_LOADING=EAGER
if [ "$device" = cuda ]; then
    nvidia-smi >"$logs/card.log" 2>&1 || { echo "there is no NVIDIA GPU here" >&2; exit 2; }
    head -15 "$logs/card.log"
    export MILLRACE_TEST_DEVICE=cuda
    simulate=() shape=8b few=8-layers
else
    simulate=(--simulate) shape=tiny few=tiny
fi

# Modules in processes of their own, at the same time: an error of the GPU ends what comes after it
# in a process.
run_tests() {
    local modules module pids=() limit=$((budget - SECONDS < 130 ? budget - SECONDS : 130))
    modules=$("$work/kernel-tests" --list 2>/dev/null | sed -n 's/^\([a-z0-9_]*\)::.*: test$/\1/p' | sort -u)
    [ "$limit" -ge 10 ] || return
    # tests NAME PROGRAM ARGUMENTS…
    tests() {
        local name=$1 start=$SECONDS program=$2 code
        shift 2
        timeout --kill-after=10 $limit "$work/$program" --test-threads=1 --show-output "$@" >"$logs/tests-$name.log" 2>&1
        code=$?
        echo "$name $((SECONDS - start)) $code $(grep -c '^test .* ok$' "$logs/tests-$name.log")" >>"$logs/tests.txt"
    }
    for module in $modules; do
        case $module in sim | arena | nccl | peers | allreduce | ptx | symbols) continue ;; esac
        tests "$module" kernel-tests --skip sim:: "$module::" &
        pids+=($!)
    done
    for module in cuda fp8 gpu_integers; do
        tests "suite-$module" kernel-suite "$module::" &
        pids+=($!)
    done
    for module in a_gpu graphs::; do
        tests "shard-${module%::}" shard-suite --skip starts_on_a_gpu --skip quantized_gpu "$module" &
        pids+=($!)
    done
    (timeout --kill-after=10 $limit python3 $here/serve.py texts "$work/millrace" "$logs" >"$logs/texts.log" 2>&1
     echo "texts 0 $? 1" >>"$logs/tests.txt") &
    pids+=($!)
    wait "${pids[@]}"
    while read -r name seconds code passed; do
        note "tests of $name ($passed)" "$seconds" "$code"
    done < <(sort "$logs/tests.txt")
    grep -h "panicked at\|^test .* FAILED\|^test result: F" -A3 "$logs"/tests-*.log | cut -c1-300 | head -150
}
run_bench() {
    local modules=${MILLRACE_CHECK_MODULES:-norm embed activation prologue step moe prefill decode gemv quant_gemm fp8 grouped_gemm recurrent sample allreduce}
    for module in $modules; do
        MILLRACE_BENCH_JSON=$logs/bench.json step "bench-$module" 40 "$work/kernel-bench" "$module" "${simulate[@]}"
    done
    grep -h "FAILED" "$logs"/bench-*.log | head -20
}
run_serve() {
    step shape 30 python3 $here/shape.py "$work/shape" $shape
    step serve 170 python3 $here/serve.py speed "$work/millrace" "$logs" "$work/shape"
}
run_logits() {
    step write 60 python3 $here/llama.py write "$work/few" $few
    step answers 60 python3 $here/serve.py logits "$work/millrace" "$logs" "$work/few"
    step logits 40 python3 $here/llama.py logits "$work/few" "$logs/answers.json"
}
run_torch() {
    [ -d "$work/shape" ] || step shape 30 python3 $here/shape.py "$work/shape" $shape
    step pytorch 120 python3 $here/llama.py speed "$work/shape" "$logs/llama.json"
    [ ! -e "$logs/bench.json" ] || step operations 45 python3 $here/torch_bench.py "$logs/bench.json" "$logs/torch.json"
}
run_ranks() {
    step ranks 40 python3 $here/serve.py ranks "$work/millrace" "$logs"
}
# Ranks on one GPU wait for each other until their patience ends. Each of their streams needs a
# connection to the GPU of its own.
run_allreduce() {
    step allreduce 60 env CUDA_DEVICE_MAX_CONNECTIONS=32 "$work/kernel-tests" --test-threads=1 allreduce::
}
run_sanitize() {
    command -v compute-sanitizer >/dev/null || { echo "there is no compute-sanitizer"; return; }
    for tool in memcheck racecheck; do
        step "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            env MILLRACE_TEST_SEED=1 "$work/kernel-tests" --test-threads=1 --skip sim:: random
    done
}

step doctor 30 "$work/millrace" doctor
cat "$logs/doctor.log"
for part in "${wanted[@]}"; do
    echo "== $part"
    "run_$part" || true
    save
done
cat "$out/table.md"
[ ${#failed[@]} = 0 ] || { printf 'failed: %s\n' "${failed[*]}"; exit 1; }
