#!/bin/bash
# seeds.sh - a test program of the CUDA backend under several orders of the streams, summed up
#
#     tests/gpu/seeds.sh 'SEED ...' PROGRAM [FILTER ...]
#
# Once for every seed (DT_EMU=random:SEED; with DT_HARSH=1 also DT_EMU_HARSH=SEED) and filter. The output of a run that fails is shown, with its seed.
seeds=$1 program=$2
shift 2
[ $# -gt 0 ] || set -- '*'
passed=0 failed=0 skipped=0
for seed in $seeds; do
    for filter in "$@"; do
        out=$(${DT_HARSH:+env DT_EMU_HARSH=$seed} env DT_EMU=random:$seed "$program" "--filter=$filter" 2>&1)
        status=$?
        line=$(echo "$out" | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' | tail -1)
        read -r p _ f _ s _ <<< "${line:-0 passed, 0 failed, 0 skipped}"
        if [ "$f" -eq 0 ] && { [ $status -ne 0 ] || [ $((p + s)) -eq 0 ]; }; then f=1; fi
        [ "$f" -eq 0 ] || printf '%s\nFAIL DT_EMU=random:%s %s --filter=%s: status %d\n' "$(echo "$out" | tail -60)" \
            "$seed" "$program" "$filter" $status
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
