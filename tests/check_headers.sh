#!/bin/bash
# check_headers.sh - what must hold for every header of the family (dt.h, dt_*.h beside the Makefile)
#
#   - alone and all together, with and without DT_IMPLEMENTATION, they compile without a warning: C99, C11, C17 (gcc,
#     clang), C++17, C++20 (g++, clang++), nvcc. Code is generated once per compiler and language, for all together;
#     the other combinations are parsed and checked for warnings, which takes a tenth of the time.
#   - translation units link, C with C, C++ with C++, C with C++; DT_STATIC; the implementation macro before and after a
#     plain include; only dt_ symbols, no public variables; the option macros in C and C++20
#   - line 1, the versions, README's table of files, the contents list, the program in the manual
#   - strict C99 with a libc header first is an #error that says the remedy
# DT_TEST_QUICK=1: each header alone with fewer compilers.
# One line a check: ok, FAIL (with the output of the compiler) or skip. Two checks run at a time.
cd "$(dirname "$0")/.." || exit 1
root=$PWD
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dt_headers.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
: > "$tmp/results"

warn="-Wall -Wextra -Wpedantic -Wshadow -Werror"
libs="-lm -lpthread -ldl"
headers=(dt*.h)
all="${headers[*]}"
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)

# -------------------------------------------------------------------------------------------------- the checks' engine
one() { # what, command...: runs it now
    local what=$1 log
    shift
    log=$(mktemp "$tmp/log.XXXXXX")
    if "$@" > "$log" 2>&1; then
        echo "ok   $what"
        echo ok >> "$tmp/results"
    else
        { echo "FAIL $what" && head -n 20 "$log" | sed 's/^/       /'; }
        echo FAIL >> "$tmp/results"
    fi
}
check() { # the same, beside one other
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    one "$@" &
}
skip() { # what, reason
    echo "skip $1: $2"
    echo skip >> "$tmp/results"
}
source_of() { # file, headers, lines before the includes..., "--", lines after
    local file=$1 h
    {
        for h in "${@:3}"; do
            [ "$h" = -- ] && break
            echo "$h"
        done
        for h in $2; do echo "#include \"$h\""; done
        local after=0
        for h in "${@:3}"; do
            [ $after = 1 ] && echo "$h"
            [ "$h" = -- ] && after=1
        done
    } > "$file"
}
use='int dt_headers_main(void); int dt_headers_main(void) { return dt_error() != 0; }'

# "gcc c99" ...: each installed compiler with each standard it must take
modes=()
for cc in gcc clang; do
    if command -v $cc > /dev/null; then modes+=("$cc c99" "$cc c11" "$cc c17"); else skip "headers with $cc" "not installed"; fi
done
for cc in g++ clang++; do
    if command -v $cc > /dev/null; then modes+=("$cc c++17" "$cc c++20"); else skip "headers with $cc" "not installed"; fi
done
[ -n "$nvcc" ] || skip "headers with nvcc" "not installed"

compile() { # mode, source, object or "" (syntax only), more flags...
    local mode=$1 src=$2 obj=$3 cc=${1% *} std=${1#* } lang=c
    shift 3
    case $cc in *++) lang=c++ ;; esac
    if [ -n "$obj" ]; then set -- -c -o "$obj" "$@"; else set -- -fsyntax-only "$@"; fi
    # shellcheck disable=SC2086
    $cc -std=$std $warn -O0 -I"$root" -x $lang "$src" "$@"
}
nvcc_compile() { # source, object
    "$nvcc" -x cu -std=c++17 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wshadow,-Werror -O0 -I"$root" -c "$1" -o "$2"
}

# -------------------------------------------------------------------------------------------------- compile
for h in $all; do source_of "$tmp/plain_$h.c" "$h"; done
for h in $all; do source_of "$tmp/impl_$h.c" "$h" '#define DT_IMPLEMENTATION'; done
source_of "$tmp/plain_all.c" "$all" -- "$use"
source_of "$tmp/impl_all.c" "$all" '#define DT_IMPLEMENTATION'
source_of "$tmp/before.c" "$all $all" '#define DT_IMPLEMENTATION' -- "$use"
source_of "$tmp/after.c" "$all" -- '#define DT_IMPLEMENTATION' "$(for h in $all; do echo "#include \"$h\""; done)" "$use"
source_of "$tmp/static.c" "$all" '#define DT_STATIC' '#define DT_IMPLEMENTATION' -- 'int main(void) { return 0; }'
source_of "$tmp/main.c" "$all" -- 'int main(void) { return dt_error() != 0; }'
source_of "$tmp/late.c" "$all" '#include <stdio.h>' '#define DT_IMPLEMENTATION'
source_of "$tmp/options.c" "dt.h" -- 'dt_tensor *f(dt_tensor *x); ' 'dt_tensor *f(dt_tensor *x)' '{' \
    '    dt_tensor *y = dt_zeros(DT_SHAPE(2, 3), .dtype = DT_F16);' \
    '    if (dt_backward(dt_sum(x)) < 0) return dt_ones(DT_SCALAR);' \
    '    return dt_sum(dt_op_linear(x, y, NULL, .act = DT_ACT_RELU), .dims = DT_DIM(0) | DT_DIM(-1), .keepdim = true);' '}'

for mode in "${modes[@]}"; do
    id=${mode// /_}
    case $mode in
    gcc\ c11 | g++\ c++17 | clang\ c11) check "all implementations, $mode, to code" compile "$mode" "$tmp/impl_all.c" "$tmp/impl_$id.o" ;;
    *) check "all implementations, $mode" compile "$mode" "$tmp/impl_all.c" "" ;;
    esac
    for h in $all; do
        check "$h plain, $mode" compile "$mode" "$tmp/plain_$h.c" "$tmp/plain_${h}_$id.o"
        case $mode in
        gcc\ c99 | g++\ c++20) check "$h implementation alone, $mode" compile "$mode" "$tmp/impl_$h.c" "" ;;
        *c99 | *++20) [ -n "$DT_TEST_QUICK" ] || check "$h implementation alone, $mode" compile "$mode" "$tmp/impl_$h.c" "" ;;
        esac
    done
    check "all plain, $mode" compile "$mode" "$tmp/plain_all.c" "$tmp/plain_$id.o"
    [ "$mode" = "${mode% c++17}" ] && check "option macros, $mode" compile "$mode" "$tmp/options.c" ""
    check "tests/dt_test.h, $mode" compile "$mode" "tests/dt_test.h" ""
done
if [ -n "$nvcc" ]; then
    for h in $all; do
        [ -n "$DT_TEST_QUICK" ] || check "$h plain, nvcc" nvcc_compile "$tmp/plain_$h.c" "$tmp/plain_${h}_nvcc.o"
    done
    check "all plain, nvcc" nvcc_compile "$tmp/plain_all.c" "$tmp/plain_nvcc.o"
    check "all implementations, nvcc, to code" nvcc_compile "$tmp/impl_all.c" "$tmp/impl_nvcc.o"
fi
for mode in "gcc gnu11" "g++ c++17" "clang gnu17" "clang++ gnu++20"; do
    command -v "${mode% *}" > /dev/null || continue
    check "implementation, then plain, $mode" compile "$mode" "$tmp/before.c" ""
    check "plain, then implementation, $mode" compile "$mode" "$tmp/after.c" ""
done
check "plain, then implementation, gcc c99 -D_GNU_SOURCE" compile "gcc c99" "$tmp/after.c" "" -D_GNU_SOURCE
for mode in "gcc c11" "g++ c++17" "clang gnu17"; do
    command -v "${mode% *}" > /dev/null || continue
    check "DT_STATIC, nothing used, $mode" compile "$mode" "$tmp/static.c" "$tmp/static_${mode// /_}.o"
done

late() { # the compile must fail and name the remedy
    local out
    out=$(compile "$1" "$tmp/late.c" "" 2>&1) && { echo "it compiles"; return 1; }
    case $out in *"#error"*_GNU_SOURCE*) ;; *) echo "no #error that names _GNU_SOURCE:"; echo "$out"; return 1 ;; esac
}
check "<stdio.h> before the implementation in strict C99 is an #error" late "gcc c99"
wait

# -------------------------------------------------------------------------------------------------- link
link() { # linker, language of main, implementation object
    local exe
    exe=$(mktemp "$tmp/exe.XXXXXX")
    # shellcheck disable=SC2086
    case $2 in c) gcc -std=c11 $warn -I"$root" -c "$tmp/main.c" -o "$exe.o" ;;
    c++) g++ -std=c++17 $warn -I"$root" -x c++ -c "$tmp/main.c" -o "$exe.o" ;; esac || return 1
    # shellcheck disable=SC2086
    $1 "$exe.o" "${@:3}" -o "$exe" $libs && timeout 60 "$exe"
}
check "C + C implementation + another C unit link" link gcc c "$tmp/impl_gcc_c11.o" "$tmp/plain_gcc_c99.o"
check "C++ + C++ implementation + another C++ unit link" link g++ c++ "$tmp/impl_g++_c++17.o" "$tmp/plain_g++_c++20.o"
check "C++ + C implementation link" link g++ c++ "$tmp/impl_gcc_c11.o"
check "C + C++ implementation link" link g++ c "$tmp/impl_g++_c++17.o" "$tmp/plain_gcc_c11.o"
if [ -n "$nvcc" ]; then check "C + nvcc's implementation link" link "$nvcc" c "$tmp/impl_nvcc.o"; fi
static_runs() { # shellcheck disable=SC2086
    gcc "$tmp/static_gcc_c11.o" -o "$tmp/static" $libs && timeout 60 "$tmp/static"
}
check "a DT_STATIC program links and runs" static_runs
wait

symbols() { # object, kinds of symbols that do not count
    local bad
    bad=$(readelf -sW "$1" | awk '$7 != "UND" && ($5 == "GLOBAL" || $5 == "WEAK")') || return 1
    [ -n "$bad" ] || { echo "no symbols at all"; return 1; }
    # what headers share of their insides is hidden and begins with dt__; what programs see is a function dt_...
    bad=$(echo "$bad" | awk -v skip="$2" '!($5 == "WEAK" && skip) && ($6 == "HIDDEN" ? $8 !~ /^dt__/ : ($8 !~ /^dt_[a-z0-9]/ || $8 ~ /^dt__/ || $4 != "FUNC")) { print }')
    [ -z "$bad" ] || { echo "neither a function dt_... nor hidden (readelf):"; echo "$bad"; return 1; }
}
one "only functions dt_ are visible, C" symbols "$tmp/impl_gcc_c11.o" ""
one "only functions dt_ are visible, C++" symbols "$tmp/impl_g++_c++17.o" weak

# -------------------------------------------------------------------------------------------------- the text
first_line() { # header, field: name, version or text
    sed -n '1s|^/\* \(dt[a-z0-9_]*\.h\) - v\([0-9][0-9]*\.[0-9][0-9]*\.[0-9][0-9]*\) - \(.*[^ ]\) \*/$|\'"$2"'|p' "$1"
}
line_one() {
    [ "$(first_line "$1" 1)" = "$1" ] && return 0
    echo "line 1 is not '/* $1 - vX.Y.Z - text */' but:"
    head -1 "$1"
    return 1
}
in_readme() {
    grep -F "\`$1\`" README.md | grep '^|' | grep -qF "| $(first_line "$1" 3) |" && [ -n "$(first_line "$1" 3)" ] && return 0
    echo "README.md has no table row with \`$1\` and '| $(first_line "$1" 3) |'"
    return 1
}
same_version() {
    local h v
    v=$(sed -n 's/^#define DT_VERSION "\(.*\)"$/\1/p' dt_base.h)
    for h in $all; do
        [ "$(first_line "$h" 2)" = "$v" ] || { echo "$h: '$(first_line "$h" 2)' in line 1, DT_VERSION is '$v'"; return 1; }
    done
}
contents() { # the list under CONTENTS equals the markers of the sections, in order
    awk '/^ *CONTENTS *$/ { on = 1; next } on && /^ *>>/ { print $1; seen = 1; next } on && seen && /[^ ]/ { exit }' "$1" > "$tmp/list"
    grep -oE '^ *(/\*|//) *[-=]{4,} *>>[A-Za-z0-9_]+' "$1" | grep -oE '>>.*' > "$tmp/marks"
    [ -s "$tmp/list" ] || { echo "no CONTENTS list"; return 1; }
    diff "$tmp/list" "$tmp/marks" > "$tmp/diff" || { echo "< in the list, > in the file:"; cat "$tmp/diff"; return 1; }
}
manual_program() { # the block deeper than its heading, up to the next heading
    awk '
        function indent(s) { match(s, /^ */); return RLENGTH }
        !on && /^ *A COMPLETE PROGRAM *$/ { on = 1; depth = indent($0); next }
        on && /[^ ]/ && indent($0) <= depth && /^ *[A-Z][A-Z0-9 ,:()\047\/-]*$/ { exit }
        on && /\*\/ *$/ && indent($0) <= depth { exit }
        on && (indent($0) > depth || !/[^ ]/) { print }
    ' "$1" > "$tmp/manual_$1.c"
    grep -q 'main' "$tmp/manual_$1.c" || { echo "no indented program under A COMPLETE PROGRAM"; return 1; }
    # shellcheck disable=SC2086
    gcc -std=c11 -Wall -Wextra -Werror -O1 -I"$root" "$tmp/manual_$1.c" -o "$tmp/manual_$1" $libs &&
        (mkdir -p "$tmp/cwd_$1" && cd "$tmp/cwd_$1" && timeout 120 "$tmp/manual_$1")
}
for h in $all; do
    check "$h: the program in its manual compiles and runs" manual_program "$h"
done
wait
for h in $all; do
    one "$h: line 1" line_one "$h"
    one "$h: README's table of files" in_readme "$h"
    one "$h: contents list and sections" contents "$h"
done
one "all headers have one version" same_version

count() { grep -c "^$1\$" "$tmp/results"; }
echo "$(count ok) passed, $(count FAIL) failed, $(count skip) skipped"
[ "$(count FAIL)" -eq 0 ] && [ "$(count ok)" -gt 0 ]
