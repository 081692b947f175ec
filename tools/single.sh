#!/bin/sh
# single.sh - writes all headers of dt, in the order of dt.c, into one header
#
#     tools/single.sh build/dt_single.h
#
# Headers that come earlier are not included again, except dt_base.h where it adds vector types. The kernels of dt_cpu.h
# are compiled once for each instruction set: there the single header includes itself, so it must keep its name.
set -eu
out=$1
dir=$(cd "$(dirname "$0")/.." && pwd)
name=$(basename "$out")
headers=$(sed -n 's/^#include "\(.*\.h\)".*/\1/p' "$dir/dt.c")
version=$(sed -n 's/^#define DT_VERSION "\(.*\)"/\1/p' "$dir/dt_base.h")
mkdir -p "$(dirname "$out")"
{
    echo "/* $name - v$version - all headers of dt in one; keep its name, because it includes itself"
    echo
    echo "   In one C or C++ file:       #define DT_IMPLEMENTATION"
    echo "                               #include \"$name\""
    echo "   In every other file:        #include \"$name\""
    echo "   Link with -lm -lpthread."
    echo
    sed 's/^\(.\)/   \1/' "$dir/LICENSE"
    echo "*/"
    for h in $headers; do
        [ "$h" = dt_cpu.h ] || echo '#ifndef DT__AGAIN'
        awk -v self="$h" -v name="$name" -v dir="$dir" '
            /^#include "dt[a-z_]*\.h"/ {
                split($0, part, "\"")
                if (part[2] == self) print "#define DT__AGAIN\n#include \"" name "\"\n#undef DT__AGAIN"
                else if (before ~ /^#define DT__WANT_/) while ((getline line < (dir "/" part[2])) > 0) print line
                close(dir "/" part[2])
                next
            }
            { print; before = $0 }' "$dir/$h"
        [ "$h" = dt_cpu.h ] || echo '#endif /* DT__AGAIN */'
    done
} > "$out.part"
mv "$out.part" "$out"
