#!/bin/bash
# selftest.sh - the tests of the CUDA backend on a real GPU: `make cuda-selftest`
#
#     tests/gpu/selftest.sh WHAT-IS-MISSING MAKE 'PROGRAM ...' [emulated]
#
# Builds for the first GPU with the real libraries, runs each program (the conformance suite, the trainers), and then measures
# each kernel beside what gpu_paper computes (gpu_perf --time). Writes build/gpu/selftest.txt: GPUs, driver, versions, the
# result of every test, the output of those that failed, the speeds, and at its end what differed. Ends with 1 if a test
# failed, or without a GPU; a kernel that is slower than computed is no failure.
#
# emulated: the same with the programs that were built for the emulated runtime, whose times mean nothing: the test of this
# file. It writes build/gpu/selftest-emulated.txt.
cd "$(dirname "$0")/../.." || exit 1
missing=$1 make=$2 programs=$3 mode=${4:-real}
report=build/gpu/selftest.txt dir=build/gpu/native part=1
[ "$mode" = real ] || { report=build/gpu/selftest-emulated.txt dir=build/gpu part=1024; export LD_LIBRARY_PATH=build/gpu; }
log=${report%.txt}.log rows=${report%.txt}-paper.txt
stop() {
    echo "cuda-selftest: $1"
    exit 1
}
builds() { # program
    [ "$mode" = emulated ] || $make -k --no-print-directory "$dir/$1" "GPU_NATIVE=$arch" > $log 2>&1
}
[ -z "$missing" ] || stop "$missing"
if [ "$mode" = real ]; then
    out=$($make -s --no-print-directory build/gpu/native/gpu_info 2>&1) ||
        stop "gpu_info does not build: $(echo "$out" | tail -1)"
    arch=$(build/gpu/native/gpu_info --arch 2>&1) || stop "$arch"
fi
{
    echo "dt: $(sed -n 's/^#define DT_VERSION "\(.*\)"$/\1/p' dt_base.h)," \
        "$(git describe --always --dirty 2> /dev/null || echo no commit)"
    date -u '+%Y-%m-%d %H:%M UTC'
    uname -srm
    if [ "$mode" = real ]; then build/gpu/native/gpu_info; else echo "emulated: no GPU was used"; fi
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    $nvcc --version | grep release
    nvidia-smi --query-gpu=driver_version,clocks.max.sm,clocks.max.memory,power.limit --format=csv,noheader 2> /dev/null |
        sed 's/^/kernel driver, highest clocks, power: /' | sort -u
} > $report
cat $report
differed=() count=0
result() { # name, status, its last line
    count=$((count + 1))
    if [ "$2" -eq 0 ] && [ -n "$3" ]; then echo "ok   $1: $3"
    else
        differed+=("$1 failed: ${3:-no summary}, status $2")
        echo "FAIL $1: ${3:-no summary}, status $2"
    fi
}
for p in $programs; do
    if ! builds "$p"; then
        { echo; echo "$p: does not build"; tail -20 $log; } >> $report
        result "$p" 1 "does not build"
        continue
    fi
    start=$SECONDS
    DT_TEST_DEVICE=cuda timeout -k 10 1800 "$dir/$p" > $log 2>&1 < /dev/null
    status=$?
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' $log | tail -1)
    {
        echo
        echo "$p: ${line:-no summary}, status $status, $((SECONDS - start)) s"
        grep -aE '^\[ +(OK|FAILED|SKIPPED) +\] .*\(|^    .* apart$|Skipped :' $log
        [ $status -eq 0 ] || { echo "---- its last lines"; tail -60 $log; }
    } >> $report
    result "$p" $status "$line"
done
failed=${#differed[@]}
# ---- speed
{ echo; echo "Speed of each kernel, beside what bench/gpu_paper.c computes for this card"; } >> $report
if builds gpu_perf && $make -s --no-print-directory build/bench/gpu_paper >> $log 2>&1 &&
    build/bench/gpu_paper --rows $part > "$rows"; then
    timeout -k 10 1800 "$dir/gpu_perf" --time "$rows" > $log 2>&1
    status=$?
    cat $log >> $report
    result gpu_perf $status "$(grep -aE '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' $log | tail -1)"
    while read -r line; do differed+=("$line"); done < <(grep -aE ' SLOWER$| faster$|^FAIL ' $log)
    failed=$((failed + (status != 0)))
else
    tail -20 $log >> $report
    result gpu_perf 1 "does not build"
    failed=$((failed + 1))
fi
{
    echo
    echo "What differed: ${#differed[@]}"
    [ ${#differed[@]} -eq 0 ] || printf '    %s\n' "${differed[@]}"
} >> $report
echo "cuda-selftest: $count programs, $failed failed, ${#differed[@]} things differed; the report to send: $report"
echo "$((count - failed)) passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
