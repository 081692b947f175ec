#!/bin/bash
# run.sh - runs test programs and sums up what they say
#
#     tests/run.sh 'label|command' 'label|alone: command' 'label|skip: reason' ...
#
# DT_TEST_JOBS programs run at a time (default 2), but no others beside those that are to run alone: ranks, faults and clocks.
# Of these DT_TEST_ALONE run at a time (default 1; with 2 make test takes two minutes less, and a clock may run out).
# A program passes when it ends with status 0 and prints "N passed, N failed, N skipped" with nothing failed. The closing
# lines of the public utest.h, "[  PASSED  ] N tests." and so on, are read as such a line; its status is the number of
# failed tests.
# One that crashes, hangs, prints no such line, runs no test or fails after its tests is a failure, and is named.
# Its output is kept in build/log/ and shown when it failed (V=1: always). DT_TEST_PROGRAM_TIMEOUT is the limit for one
# program in seconds (default 1200), scaled by DT_TEST_SLOW. The last line is the sum; exit 1 if anything failed.
cd "$(dirname "$0")/.." || exit 1
log_dir=${DT_TEST_LOG:-build/log}
mkdir -p "$log_dir" || exit 1
limit=$(awk -v t="${DT_TEST_PROGRAM_TIMEOUT:-1200}" -v s="${DT_TEST_SLOW:-1}" \
    'BEGIN { if (s + 0 <= 0) s = 1; n = int(t * s); print n < 1 ? 1 : n }')
jobs=${DT_TEST_JOBS:-2} alone=${DT_TEST_ALONE:-1} mode=
passed=0 failed=0 skipped=0
tally=$(mktemp -d "${TMPDIR:-/tmp}/dt_run.XXXXXX") || exit 1
trap 'rm -rf "$tally"' EXIT

fail() { # label, reason
    f=$((f + 1))
    name="$1: $2"
    reason=$2
}

# A program that ended badly: what the log says about where.
where() {
    local test
    test=$(grep -a '^\[ RUN ' "$1" | tail -1 | sed 's/^\[ RUN *\] //')
    [ -n "$test" ] && printf ' in %s' "$test"
}

# The counts that a program printed last, as "N passed, N failed, N skipped".
summary() {
    LC_ALL=C awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { line = $0; closing = 0 }
        /^\[==========\] [0-9]+ test cases ran\.$/ { closing = 1; s = f = 0 }
        closing && /^\[  PASSED  \] [0-9]+ tests\.$/ { p = $4; line = p " passed, 0 failed, 0 skipped" }
        closing && /^\[  SKIPPED \] [0-9]+ tests, listed below:$/ { s = $4; line = p " passed, 0 failed, " s " skipped" }
        closing && /^\[  FAILED  \] [0-9]+ tests, listed below:$/ { f = $4; line = p " passed, " f " failed, " s " skipped" }
        END { print line }' "$1"
}

run() { # label, command, number: what it did goes to $tally/number.*
    local label=$1 command=$2 sum=$tally/$3 start status line reason='' name='' p=0 f=0 s=0
    local log=$log_dir/${label//\//_}.log
    start=$SECONDS
    { timeout -k 10 "$limit" bash -c "$command" > "$log" 2>&1 < /dev/null; } 2> /dev/null
    status=$?
    line=$(summary "$log")
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]} s=${BASH_REMATCH[3]}
        if [ "$f" -gt 0 ]; then
            reason="$f failed"
            name="$label: $f failed: $(grep -a '^\[  FAILED  \] .*\.\|^FAIL ' "$log" | sed 's/^\[  FAILED  \] //; s/^FAIL //; s/ ([^)]*)$//' |
                sort -u | head -20 | paste -sd ';' | sed 's/;/; /g')"
        elif [ $status -eq 124 ] || [ $status -eq 137 ]; then fail "$label" "did not end after its tests"
        elif [ $status -ne 0 ]; then fail "$label" "exit status $status although no test failed"
        elif [ $((p + s)) -eq 0 ]; then fail "$label" "ran no test"
        fi
    elif [ $status -eq 124 ] || [ $status -eq 137 ]; then fail "$label" "did not end within $limit s$(where "$log")"
    elif [ $status -gt 128 ]; then fail "$label" "crashed with signal $((status - 128))$(where "$log")"
    elif [ $status -eq 127 ] || [ $status -eq 126 ]; then fail "$label" "cannot be run (was it built?)"
    else fail "$label" "exit status $status without a summary line$(where "$log")"
    fi
    grep -a "^skip \|^   Skipped : " "$log" | sed "s/^skip *//; s/^ *Skipped : //" | sort | uniq -c |
        sed 's/^ *1 //; s/^ *\([0-9][0-9]*\) \(.*\)/\2 (\1 times)/' |
        while IFS= read -r line; do echo "$label: $line"; done > "$sum.skips"
    [ -z "$name" ] || echo "$name" > "$sum.names"
    if [ -n "$reason" ] || [ -n "$V" ]; then
        echo "---- $label: output"
        tail -n 200 "$log"
        echo "---- $label: end of output ($log)"
    fi > "$sum.text"
    printf '%-4s %-36s %4d passed %3d failed %3d skipped  %4d s%s\n' "$([ -n "$reason" ] && echo FAIL || echo ok)" \
        "$label" "$p" "$f" "$s" $((SECONDS - start)) "${reason:+  $reason}" >> "$sum.text"
    cat "$sum.text"
    echo "$p $f $s" > "$sum.sum"
}

number=10000
for spec in "$@"; do
    label=${spec%%|*} command=${spec#*|} number=$((number + 1))
    case $command in
    'skip: '*)
        echo "0 0 1" > "$tally/$number.sum"
        echo "$label: ${command#skip: }" > "$tally/$number.skips"
        printf 'skip %-36s %s\n' "$label" "${command#skip: }"
        ;;
    'alone: '*)
        [ "$mode" = alone ] || wait
        mode=alone
        while [ "$(jobs -rp | wc -l)" -ge "$alone" ]; do wait -n; done
        run "$label" "${command#alone: }" $number &
        ;;
    *)
        [ "$mode" = alone ] && wait
        mode=
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        run "$label" "$command" $number &
        ;;
    esac
done
wait
for spec in "$tally"/*.sum; do
    [ -f "$spec" ] || continue
    read -r p f s < "$spec"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
cat "$tally"/*.skips 2> /dev/null | sed 's/^/skipped  /'
cat "$tally"/*.names 2> /dev/null | sed 's/^/FAILED  /'
if [ $((passed + failed + skipped)) -eq 0 ]; then
    echo "run.sh: nothing was run"
    failed=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
