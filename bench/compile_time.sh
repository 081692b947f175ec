#!/bin/bash
# How long the headers take to compile: the implementation at -O2 (under 20 s), and an include alone over an empty file
# (under 0.2 s); the best of three and of five, since other programs on the machine only add time.
cd "$(dirname "$0")/.." || exit 1
cc=${1:-gcc}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
seconds() { # the best of $1 runs of the rest, user and system time
    local n=$1 best= t
    shift
    for ((i = 0; i < n; i++)); do
        t=$( { TIMEFORMAT='%U %S'; time "$@" > /dev/null 2>&1; } 2>&1 | awk '{ print $1 + $2 }')
        best=$(awk -v a="$t" -v b="$best" 'BEGIN { print b == "" || a < b ? a : b }')
    done
    echo "$best"
}
echo '#include "dt.h"' > "$dir/plain.c"
: > "$dir/empty.c"
printf '#define DT_IMPLEMENTATION\n#include "dt.h"\n' > "$dir/impl.c"
empty=$(seconds 5 $cc -O2 -I. -c "$dir/empty.c" -o "$dir/x.o")
plain=$(seconds 5 $cc -O2 -I. -c "$dir/plain.c" -o "$dir/x.o")
impl=$(seconds 3 $cc -O2 -I. -c "$dir/impl.c" -o "$dir/x.o")
awk -v e="$empty" -v p="$plain" -v i="$impl" 'BEGIN {
    printf "compile: the implementation at -O2 %.1f s (limit 20), an include %.3f s more than nothing (limit 0.2)\n", i, p - e
    exit !(i < 20 && p - e < 0.2) }'
