#!/bin/bash
# selftest.sh - the tests of the CUDA backend on a real GPU: `make cuda-selftest`
#
#     tests/gpu/selftest.sh WHAT-IS-MISSING MAKE 'PROGRAM ...'
#
# Builds for the first GPU with the real libraries, runs each program, and writes build/gpu/selftest.txt: GPUs, driver,
# versions, the result of every test and the output of those that failed. Ends with 1 if one failed, or without a GPU.
cd "$(dirname "$0")/../.." || exit 1
missing=$1 make=$2 programs=$3 report=build/gpu/selftest.txt log=build/gpu/selftest.log
stop() {
    echo "cuda-selftest: $1"
    exit 1
}
[ -z "$missing" ] || stop "$missing"
out=$($make -s --no-print-directory build/gpu/native/gpu_info 2>&1) ||
    stop "gpu_info does not build: $(echo "$out" | tail -1)"
arch=$(build/gpu/native/gpu_info --arch 2>&1) || stop "$arch"
{
    echo "dt: $(sed -n 's/^#define DT_VERSION "\(.*\)"$/\1/p' dt_base.h)," \
        "$(git describe --always --dirty 2> /dev/null || echo no commit)"
    date -u '+%Y-%m-%d %H:%M UTC'
    uname -srm
    build/gpu/native/gpu_info
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    $nvcc --version | grep release
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | sed 's/^/kernel driver /' | sort -u
} > $report
cat $report
failed=0
for p in $programs; do
    if ! $make -k --no-print-directory "build/gpu/native/$p" "GPU_NATIVE=$arch" > $log 2>&1; then
        { echo; echo "$p: does not build"; tail -20 $log; } >> $report
        failed=$((failed + 1))
        echo "FAIL $p: does not build"
        continue
    fi
    start=$SECONDS
    DT_TEST_DEVICE=cuda timeout -k 10 1800 "build/gpu/native/$p" > $log 2>&1 < /dev/null
    status=$?
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' $log | tail -1)
    {
        echo
        echo "$p: ${line:-no summary}, status $status, $((SECONDS - start)) s"
        grep -aE '^\[ +(OK|FAILED|SKIPPED) +\] .*\(|^    .* apart$|Skipped :' $log
        [ $status -eq 0 ] || { echo "---- its last lines"; tail -60 $log; }
    } >> $report
    if [ $status -eq 0 ] && [ -n "$line" ]; then echo "ok   $p: $line"
    else
        failed=$((failed + 1))
        echo "FAIL $p: ${line:-no summary}, status $status"
    fi
done
echo "cuda-selftest: $(echo "$programs" | wc -w) programs, $failed failed; the report to send: $report"
[ $failed -eq 0 ]
