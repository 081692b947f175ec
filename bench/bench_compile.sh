#!/bin/bash
# bench_compile.sh - how long dt takes to compile: make bench-compile
#
#   the implementation, one object a header: CPU seconds of all, and wall time with two jobs
#   examples/mnist.c as one file; an example against the library; from git clone to the end of make demo
#   the compiler's largest memory
# Best of ROUNDS (3), with $1 (gcc), and with clang and nvcc where they are installed. Lines end with the limit, where there
# is one. It measures what is committed for the library and the demo. Run it with nothing beside it.
cd "$(dirname "$0")/.." || exit 1
cc=${1:-gcc}
rounds=${ROUNDS:-3}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dt_compile.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)

best() { # name, limits (text), command...: best of the rounds; CPU and wall seconds, peak memory of one process in MB
    local name=$1 limit=$2
    shift 2
    for _ in $(seq "$rounds"); do
        if /usr/bin/time -f '%U %S %e %M' -o "$tmp/one" "$@" > "$tmp/log" 2>&1; then tail -1 "$tmp/one"
        else echo "$name: failed" >&2 && tail -5 "$tmp/log" >&2; fi
    done | awk -v name="$name" -v limit="$limit" '
        { c = $1 + $2; if (NR == 1 || c < cpu) cpu = c; if (NR == 1 || $3 < wall) wall = $3; if ($4 > mem) mem = $4 }
        END { if (NR) printf "%-44s %6.1f s CPU %6.1f s wall %5.0f MB%s\n", name ":", cpu, wall, mem / 1024, limit ? "   " limit : "" }'
}
git clone -q . "$tmp/src" || exit 1
library() { rm -rf "$tmp/src/build" && make -s -C "$tmp/src" -j2 CC="$1" CFLAGS="-O2 -std=c11" build/normal/libdt.a; }
export -f library
export tmp
all() { best "$1: the library, 2 jobs" "$2" bash -c "library $1"; }
all "$cc" "limits: 26 CPU, 15 wall, 700 MB"
best "$cc: examples/mnist.c as one file" "limit: 25 CPU" $cc -O2 -I. examples/mnist.c -o "$tmp/mnist" -lm -lpthread
best "$cc: examples/mnist.c against the library" "limit: 1" \
    $cc -O2 -I. -DDT_LINKED examples/mnist.c "$tmp/src/build/normal/libdt.a" -o "$tmp/mnist" -lm -lpthread
best "$cc: README's first program as one file" "" $cc -O2 -I. -DDT_IMPLEMENTATION -x c dt_nn.h -c -o "$tmp/nn.o"
for h in dt.h dt_nn.h dt_comm.h dt_dist.h; do best "$cc: #include \"$h\", nothing else" "limit: 0.2" $cc -O2 -x c -c "$h" -o "$tmp/x.o"; done
if command -v clang > /dev/null && [ "$cc" != clang ]; then
    all clang ""
    best "clang: examples/mnist.c as one file" "" clang -O2 -I. examples/mnist.c -o "$tmp/mnist" -lm -lpthread
fi
if [ -n "$nvcc" ]; then
    best "nvcc: examples/mnist.c as one file" "" "$nvcc" -O2 -I. -c examples/mnist.c -o "$tmp/mnist.o"
fi
demo() { rm -rf "$tmp/clone" && git clone -q . "$tmp/clone" && make -s -C "$tmp/clone" demo; }
export -f demo
best "git clone and make demo" "limit: 25 wall" bash -c demo
