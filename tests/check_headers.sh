#!/bin/bash
# check_headers.sh - what must hold for every header of the family (dt.h, dt_*.h beside the Makefile)
#
#   - alone and all together, with and without DT_IMPLEMENTATION, they compile without a warning: C99, C11, C17 (gcc,
#     clang), C++17, C++20 (g++, clang++), nvcc. Code is generated once per compiler and language, for all together;
#     the other combinations are parsed and checked for warnings, which takes a tenth of the time.
#   - each header's implementation by its own macro, and which headers it may include (arrows point one way only)
#   - mixed versions, a missing or a second implementation: an #error or a link error that names the remedy
#   - translation units link, C with C, C++ with C++, C with C++; DT_STATIC; the implementation macro before and after a
#     plain include; only dt_ symbols, no public variables; the option macros in C and C++20
#   - line 1, the versions, README's table of files, the contents list, the program in the manual
#   - docs/family.svg is drawn from the #include lines; names and links in README.md and docs/*.md exist
#   - the programs of README.md, of docs/*.md, of the manuals and of examples/ compile and link as C and as C++20 (options
#     in the order of declaration); a C++17 program runs; every macro with options has a C++17 name
#   - every program of docs/tutorial.md, collectives.md and pytorch.md prints what the page says; the differences of README.md
#     apply to its program, compile and run
#   - docs/faq.md quotes messages that exist
#   - strict C99 with a libc header first is an #error that says the remedy
# DT_TEST_QUICK=1: fewer compilers and standards, manual programs linked with the library.
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
    "$nvcc" -x cu -std=c++17 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wshadow,-Werror -O0 -I"$root" -c "$1" -o "$2" "${@:3}"
}

# -------------------------------------------------------------------------------------------------- compile
for h in $all; do source_of "$tmp/plain_$h.c" "$h"; done
for h in $all; do source_of "$tmp/impl_$h.c" "$h" '#define DT_IMPLEMENTATION'; done
source_of "$tmp/plain_all.c" "$all" -- "$use"
source_of "$tmp/impl_all.c" "$all" '#define DT_IMPLEMENTATION'
part_of() { # header: the name in DT_NAME_IMPLEMENTATION
    case $1 in dt.h) echo CORE ;; *) echo "$1" | sed 's/^dt_\(.*\)\.h$/\1/' | tr a-z A-Z ;; esac
}
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
    gcc\ c11) check "dt.c, $mode, to code" compile "$mode" dt.c "$tmp/impl_$id.o" -DDT_NO_AVX2 ;;
    g++\ c++17) check "all implementations, $mode, to code" compile "$mode" "$tmp/impl_all.c" "$tmp/impl_$id.o" -DDT_NO_AVX2 ;;
    clang\ c11) if [ -n "$DT_TEST_QUICK" ]; then check "all implementations, $mode" compile "$mode" "$tmp/impl_all.c" ""
        else check "all implementations, $mode, to code" compile "$mode" "$tmp/impl_all.c" "$tmp/impl_$id.o"; fi ;;
    gcc\ c17 | clang\ c99 | clang\ c17 | clang++\ c++17)
        [ -n "$DT_TEST_QUICK" ] || check "all implementations, $mode" compile "$mode" "$tmp/impl_all.c" "" ;;
    *) check "all implementations, $mode" compile "$mode" "$tmp/impl_all.c" "" ;;
    esac
    for h in $all; do
        case $mode in
        gcc\ c99 | g++\ c++20 | clang\ c11) check "$h plain, $mode" compile "$mode" "$tmp/plain_$h.c" "$tmp/plain_${h}_$id.o" ;;
        *) [ -n "$DT_TEST_QUICK" ] || check "$h plain, $mode" compile "$mode" "$tmp/plain_$h.c" "$tmp/plain_${h}_$id.o" ;;
        esac
        case $mode in
        gcc\ c99 | g++\ c++20)
            check "$h implementation by its own macro, $mode" compile "$mode" "$tmp/plain_$h.c" "" "-DDT_$(part_of "$h")_IMPLEMENTATION"
            [ "$mode" = "g++ c++20" ] || [ -n "$DT_TEST_QUICK" ] || check "$h implementation alone, $mode" compile "$mode" "$tmp/impl_$h.c" "" ;;
        *c99 | *++20) [ -n "$DT_TEST_QUICK" ] || check "$h implementation alone, $mode" compile "$mode" "$tmp/impl_$h.c" "" ;;
        esac
    done
    check "all plain, $mode" compile "$mode" "$tmp/plain_all.c" "$tmp/plain_$id.o"
    [ "$mode" = "${mode% c++17}" ] && check "option macros, $mode" compile "$mode" "$tmp/options.c" ""
    check "tests/dt_test.h, $mode" compile "$mode" "tests/dt_test.h" "" -Itests
done
if [ -n "$nvcc" ]; then
    for h in $all; do
        [ -n "$DT_TEST_QUICK" ] || check "$h plain, nvcc" nvcc_compile "$tmp/plain_$h.c" "$tmp/plain_${h}_nvcc.o"
    done
    check "all plain, nvcc" nvcc_compile "$tmp/plain_all.c" "$tmp/plain_nvcc.o"
    check "all implementations, nvcc, to code" nvcc_compile "$tmp/impl_all.c" "$tmp/impl_nvcc.o" -DDT_NO_AVX2
fi
for mode in "gcc gnu11" "g++ c++17" "clang gnu17" "clang++ gnu++20"; do
    command -v "${mode% *}" > /dev/null || continue
    case $mode in clang*) [ -n "$DT_TEST_QUICK" ] && continue ;; esac
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

# -------------------------------------------------------------------------------------------------- arrows
arrows() { # header: it includes what is below it, and nothing else of dt
    local may bad
    case $1 in
    dt_base.h) may="" ;;
    dt.h) may="dt_base.h dt_cpu.h" ;; # dt_cpu.h only under DT_IMPLEMENTATION: a tensor needs a device
    dt_cpu.h | dt_data.h) may="dt.h dt_base.h" ;; # dt_base.h again: the AVX2 intrinsics
    dt_cuda.h | dt_ops.h) may="dt.h" ;;
    dt_io.h | dt_plot.h | dt_plan.h | dt_net.h) may="dt_base.h" ;;
    dt_nn.h) may="dt.h dt_io.h dt_plot.h" ;;
    dt_layers.h) may="dt_nn.h" ;;
    dt_msg.h) may="dt_net.h" ;;
    dt_scale.h) may="dt_plan.h" ;;
    dt_comm.h) may="dt_plan.h dt_msg.h" ;;
    dt_sim.h | dt_mpi.h | dt_ps.h) may="dt_comm.h" ;;
    dt_nccl.h) may="dt_cuda.h dt_comm.h" ;;
    dt_dist.h) may="dt_nn.h dt_data.h dt_comm.h dt_cpu.h" ;;
    dt_pipe.h | dt_elastic.h) may="dt_dist.h" ;;
    dt_serve.h) may="dt_dist.h dt_ps.h" ;;
    *) echo "$1 is not in the list of this check: say what it may include"; return 1 ;;
    esac
    [ "$1" = dt_cpu.h ] && may="$may dt_cpu.h" # once for each instruction set
    bad=$(sed -n 's/^# *include "\(dt[a-z_]*\.h\)".*/\1/p' "$1" | sort -u | while read -r i; do
        case " $may " in *" $i "*) ;; *) echo "$i" ;; esac
    done)
    [ -z "$bad" ] || { echo "$1 includes $bad, but only these are below it: $may"; return 1; }
}
for h in $all; do check "$h: includes only headers below it" arrows "$h"; done

# -------------------------------------------------------------------------------------------------- bad input
refused() { # what the output must name, command...: the command fails and says so
    local want=$1 out
    shift
    out=$("$@" 2>&1) && { echo "it succeeds"; return 1; }
    case $out in *"$want"*) ;; *) echo "the output does not name '$want':"; echo "$out"; return 1 ;; esac
}
mkdir -p "$tmp/mixed"
cp dt*.h "$tmp/mixed/"
sed -i 's/^#define DT_VERSION_PATCH .*/#define DT_VERSION_PATCH 99/' "$tmp/mixed/dt_base.h"
for h in $all; do
    [ "$h" = dt_base.h ] && continue
    check "$h beside a dt_base.h of another version is an #error" refused "dt_base.h beside it is of another version" \
        gcc -fsyntax-only -I"$tmp/mixed" -x c "$tmp/mixed/$h"
    case $h in dt_cuda.h | dt_mpi.h | dt_nccl.h) continue ;; esac
    check "$h alone with DT_STATIC is an #error" refused "define DT_IMPLEMENTATION instead of DT_$(part_of "$h")_IMPLEMENTATION" \
        gcc -fsyntax-only -DDT_STATIC "-DDT_$(part_of "$h")_IMPLEMENTATION" -x c "$h"
done
missing() { # an object of dt_data.h alone, without dt.h's
    gcc -DDT_DATA_IMPLEMENTATION -x c -c dt_data.h -o "$tmp/part.o" && gcc "$tmp/main.c" -I. "$tmp/part.o" -o "$tmp/part" $libs
}
check "an implementation whose prerequisite is missing is a link error that names it" \
    refused "define_DT_CORE_IMPLEMENTATION__in_exactly_one_file" missing
forgotten() { # a program without the implementation
    printf '%s\n' '#include "dt.h"' 'int main(void) { return dt_check("x"); }' > "$tmp/forgotten.c"
    gcc -I. "$tmp/forgotten.c" -o "$tmp/forgotten" $libs
}
check "a program without the implementation is a link error that names the remedy" \
    refused "define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c" forgotten
no_portable() { # AVX2 kernels alone: computes, and says what is missing where the portable ones are asked for
    grep -q avx2 /proc/cpuinfo || return 0
    printf '%s\n' '#define DT_IMPLEMENTATION' '#include "dt.h"' '#include <stdio.h>' \
        'int main(void) { double v = dt_item(dt_sum(dt_ones(DT_SHAPE(2, 3)))); dt_end();' \
        'if (dt_error()) puts(dt_error()); return v != 6; }' > "$tmp/no_portable.c"
    gcc -O0 -DDT_NO_PORTABLE -I. "$tmp/no_portable.c" -o "$tmp/no_portable" $libs && DT_LOG=off "$tmp/no_portable" || return 1
    DT_CPU_ISA=portable "$tmp/no_portable" | grep -q "left out by DT_NO_PORTABLE" || { echo "no message"; return 1; }
}
check "DT_NO_PORTABLE" no_portable
older() { # dt_io.h of another version beside dt_base.h of this one
    cp dt_base.h dt_io.h "$tmp/older/" && sed -i 's/dt__v[0-9_]*__link/dt__v9_9_9__link/' "$tmp/older/dt_base.h" &&
        gcc -DDT_IO_IMPLEMENTATION -I"$tmp/older" -x c -c "$tmp/older/dt_io.h" -o "$tmp/older/io.o" &&
        gcc -DDT_BASE_IMPLEMENTATION -x c -c dt_base.h -o "$tmp/older/base.o" &&
        echo 'int main(void) { return 0; }' | gcc -x c - -x none "$tmp/older/io.o" "$tmp/older/base.o" -o "$tmp/older/a" $libs
}
mkdir -p "$tmp/older"
check "objects of different versions are a link error that names the version" refused "dt__v9_9_9__link" older
twice() { # dt.c, and DT_IMPLEMENTATION in another file
    printf '%s\n' '#define DT_IMPLEMENTATION' '#include "dt_base.h"' 'int main(void) { return 0; }' > "$tmp/twice.c"
    gcc -I. "$tmp/twice.c" "$tmp/impl_gcc_c11.o" -o "$tmp/twice" $libs
}
symbol_version() {
    local v
    v=$(sed -n 's/^#define DT_VERSION "\(.*\)"$/\1/p' dt_base.h | tr . _)
    grep -q "dt__v${v}__link_dt_c" dt_base.h || { echo "DT__SYMBOL does not name version $v"; return 1; }
}
check "the link symbols name the version" symbol_version
wait
check "dt.c and DT_IMPLEMENTATION in another file is a link error that names the remedy" refused "in_exactly_one_file" twice
linked() { # one source, both ways: DT_LINKED ignores DT_IMPLEMENTATION
    gcc -I. -DDT_LINKED "$tmp/twice.c" "$tmp/impl_gcc_c11.o" -o "$tmp/linked" $libs && "$tmp/linked"
}
single() { # an example as its first comment says, one file; quickly, and with one instruction set
    gcc -I. -O1 -DDT_NO_AVX2 examples/spirals.c -o "$tmp/spirals" -lm -lpthread && timeout 120 "$tmp/spirals" > /dev/null
}
check "examples/spirals.c compiles as one file and runs" single
wait
check "DT_LINKED: a file with DT_IMPLEMENTATION links with dt.c" linked

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
    bad=$(echo "$bad" | awk -v skip="$2" '!($5 == "WEAK" && skip) && ($6 == "HIDDEN" ? $8 !~ /^dt__/ : ($8 !~ /^dt_[a-z0-9]/ || $8 ~ /^dt__/ || $4 != "FUNC")) { print }' |
        grep -v ' dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c$') # the linker shows it when an implementation is missing
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
    gcc -std=c11 -Wall -Wextra -Werror -O1 -I"$root" $manual "$tmp/manual_$1.c" $manual_lib -o "$tmp/manual_$1" $libs &&
        (mkdir -p "$tmp/cwd_$1" && cd "$tmp/cwd_$1" && timeout 120 "$tmp/manual_$1")
}
# quickly: linked with the library that the tests have; else each as one file, as the manual says
manual='' manual_lib=''
if [ -n "$DT_TEST_QUICK" ] && [ -f build/normal/libdt.a ]; then manual=-DDT_LINKED manual_lib=build/normal/libdt.a; fi
for h in $all; do
    check "$h: the program in its manual compiles and runs" manual_program "$h"
done
wait
link_symbol() { # DO THIS names what the linker says if the implementation is missing
    awk '/^A COMPLETE PROGRAM$/ { exit } { print }' "$1" | grep -q "dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c" ||
        { echo "$1: DO THIS does not name the symbol of a missing implementation"; return 1; }
}
faq() { # docs/faq.md names what the compiler and the linker say
    local want
    for want in dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c in_exactly_one_file _GNU_SOURCE "designator order" \
        "compiled without optimisation" "used twice in one forward" "was already released" "is not a set of dimensions" DT_ZERO \
        "a PyTorch archive (.pt)" "names in the file begin with" "has ended its training (it has no more batches)"; do
        grep -qF -- "$want" docs/faq.md || { echo "docs/faq.md: nothing with '$want'"; return 1; }
        case $want in in_exactly* | "designator order") continue ;; esac
        grep -qF -- "$want" dt*.h || { echo "no header says '$want' any more: change docs/faq.md"; return 1; }
    done
}
quoted() { # each message that docs/faq.md quotes is in the source: the parts between its dots, over the joints of string literals
    perl -0pe 's/"\s*\n\s*(?:PRI[a-z0-9]+\s*)?"//g; s/"\s*PRI[a-zA-Z0-9]+\s*"//g' dt*.h tools/*.c > "$tmp/messages" || return 1
    sed -n '/^## It runs, and says/,/^## Questions/s/^| \(.*\) | .* |$/\1/p' docs/faq.md | grep -o '`[^`]*`' | tr -d '`' |
        sed 's/\.\.\./\n/g; s/rank 1 has/rank\n has/' | sed 's/^ *//; s/ *$//' | awk 'length($0) > 5' > "$tmp/parts"
    [ "$(wc -l < "$tmp/parts")" -gt 25 ] || { echo "docs/faq.md: only $(wc -l < "$tmp/parts") quotations were found"; return 1; }
    while IFS= read -r part; do
        grep -qF -- "$part" "$tmp/messages" || { echo "docs/faq.md quotes '$part', which nothing says"; return 1; }
    done < "$tmp/parts"
}
one "docs/faq.md quotes messages that exist" quoted
one "docs/faq.md has the words of the compiler, the linker and the headers" faq
for h in $all; do
    one "$h: line 1" line_one "$h"
    one "$h: DO THIS names the linker's symbol" link_symbol "$h"
    one "$h: README's table of files" in_readme "$h"
    one "$h: contents list and sections" contents "$h"
done
one "all headers have one version" same_version

# -------------------------------------------------------------------------------------------------- the documents
family() { # the picture is what the script draws from the #include lines
    docs/family.sh > "$tmp/family.svg" || return 1
    cmp "$tmp/family.svg" docs/family.svg || { echo "draw it again: docs/family.sh > docs/family.svg"; return 1; }
}
words_of() { # files of C or CUDA: the names of dt in them, comments left out
    awk '
        FNR == 1 { comment = 0 }
        {
            line = $0
            while (1) {
                if (comment) {
                    if (!(at = index(line, "*/"))) break
                    line = substr(line, at + 2)
                    comment = 0
                }
                at = index(line, "/*")
                print at ? substr(line, 1, at - 1) : line
                if (!at) break
                line = substr(line, at + 2)
                comment = 1
            }
        }' "$@" | sed 's|^[[:space:]]*//.*||' | grep -oE '\b(dt|DT)_[A-Za-z0-9_]+' | sort -u
}
# Every name in README.md and docs/*.md exists. decisions.md is left out: it also tells of names that are gone. In a text
# NAME stands for any word (dt__cuda_NAME), and dt_my..., dt__my..., DT_MY... are the reader's own. Names and sections that
# the examples of docs/extending.md add are in their patches.
documented() {
    local doc word bad=0
    words_of dt*.h dt.c kernels/* > "$tmp/names"
    words_of tools/*.c tests/*.[ch] tests/gpu/*.[ch] examples/*.c bench/*.c | grep '^DT_' >> "$tmp/names"
    grep -ohE '\bDT_[A-Z0-9_]+' Makefile tests/*.sh >> "$tmp/names"
    grep -ohE '\b(dt|DT)_[A-Za-z0-9_]+' docs/extending/*.patch | sort -u >> "$tmp/names"
    for doc in README.md docs/*.md; do
        case $doc in docs/decisions.md) continue ;; esac
        grep -oE '\b(dt|DT)_[A-Za-z0-9_]+(\.(h|c|cu|o))?\b' "$doc" | sort -u | while read -r word; do
            case $word in
            *.o | dt_my* | dt__my* | DT_MY*) ;; # an object that the text makes; an example
            *.*) [ -f "$word" ] || [ -f "tests/$word" ] || [ -f "kernels/$word" ] || grep -q "build/$word:" Makefile ||
                echo "$doc: there is no file $word" ;;
            *_) grep -q "^$word" "$tmp/names" || echo "$doc: no name begins with $word" ;;
            *NAME*) grep -qE "^${word//NAME/[A-Za-z0-9]+}" "$tmp/names" || echo "$doc: nothing is named as $word" ;;
            *) grep -qx "$word" "$tmp/names" || echo "$doc: nothing in the headers is called $word" ;;
            esac
        done
        grep -oE '>>[a-z_]+' "$doc" | sort -u | while read -r word; do
            grep -qE "^[ +]?/\* [-=]+ $word( |$)" dt*.h docs/extending/*.patch || echo "$doc: no header has a section $word"
        done
    done > "$tmp/unknown"
    [ ! -s "$tmp/unknown" ] || { cat "$tmp/unknown"; bad=1; }
    return $bad
}
doc_programs() { # every C block of README.md and docs/*.md with a main, to $tmp/doc_N.c
    awk -v out="$tmp/doc_" '
        /^```c$/ { on = 1; text = ""; next }
        /^```$/ { if (on && text ~ /main\(/) { n++; file = out n ".c"; printf "%s", text > file; close(file) } on = 0 }
        on { text = text $0 "\n" }' README.md docs/*.md
    [ -f "$tmp/doc_1.c" ] || { echo "README.md has no program"; return 1; }
}
outputs() { # every program of docs/tutorial.md, collectives.md and pytorch.md prints what the block "output" behind it says
    local dir=$tmp/tutorial n=0 file
    mkdir -p "$dir" && ln -sfn "$root/data" "$dir/data"
    awk -v out="$dir/step_" '
        /^```c$/ { on = "c"; text = ""; next }
        /^```output$/ { on = "txt"; text = ""; next }
        /^```$/ {
            if (on == "c" && text ~ /main\(/) n++
            if (on == "txt" || text ~ /main\(/) { file = out n "." on; printf "%s", text > file; close(file) }
            on = text = ""
        }
        on { text = text $0 "\n" }' docs/tutorial.md docs/collectives.md docs/pytorch.md
    for file in "$dir"/step_*.c; do
        [ -f "${file%.c}.txt" ] || { echo "no output behind program $(basename "$file" .c)"; return 1; }
        compile "gcc c11" "$file" "$file.o" -DDT_LINKED && gcc "$file.o" "$tmp/impl_gcc_c11.o" -o "$file.x" $libs || return 1
        (cd "$dir" && timeout 60 "$file.x") > "$file.out" 2> "$file.err" || { echo "$file: exit status $?"; cat "$file.err"; return 1; }
        diff "${file%.c}.txt" "$file.out" || return 1
        n=$((n + 1))
    done
    [ "$n" -ge 9 ]
}
readme_diffs() { # each difference of README.md, applied to its program, compiles without a warning, and runs with the ranks it is for
    local dir=$tmp/readme n=0 file ranks
    mkdir -p "$dir" && ln -sfn "$root/data" "$dir/data"
    # In a difference " x" and "-x" stand for the next line of the program that is x. "+x" comes behind the line before it; behind
    # an empty line it comes before the line that follows.
    awk -v out="$dir/change_" '
        function apply(   i, at, kind, text, wait) {
            at = 1
            wait = ""
            file = out (n += 1) ".c"
            for (i = 1; i <= nchange; i++) {
                kind = substr(change[i], 1, 1)
                text = substr(change[i], 2)
                if (kind == "") { wait = "?"; continue }
                if (kind == "+" && wait != "") { wait = wait text "\n"; continue }
                if (kind == "+") { print text > file; continue }
                while (at <= nprogram && program[at] != text) print program[at++] > file
                printf "%s", substr(wait, 2) > file
                wait = ""
                if (at > nprogram) { print "README.md: difference " n ": the program has no further line: " text > "/dev/stderr"; exit 1 }
                if (kind == " ") print text > file
                at++
            }
            while (at <= nprogram) print program[at++] > file
            close(file)
        }
        /^```c$/ && !nprogram { on = 1; next }
        /^```diff$/ { on = 2; nchange = 0; next }
        /^```$/ { if (on == 2) apply(); on = 0; next }
        on == 1 { program[++nprogram] = $0 }
        on == 2 { change[++nchange] = $0 }' README.md || return 1
    gcc -I. -DDT_LINKED tools/dtrun.c "$tmp/impl_gcc_c11.o" -o "$dir/dtrun" $libs || return 1
    for file in "$dir"/change_*.c; do
        compile "gcc c11" "$file" "$file.o" -DDT_LINKED && gcc "$file.o" "$tmp/impl_gcc_c11.o" -o "$file.x" $libs || return 1
        n=$((n + 1)) ranks=1
        grep -q dt_comm_init "$file" && ranks=2
        grep -q 'dt_cuda(0)' "$file" && continue
        if [ $ranks = 2 ]; then
            (cd "$dir" && timeout 60 ./dtrun -n 2 "$file.x") > "$file.out" 2>&1
        else
            (cd "$dir" && timeout 60 "$file.x") > "$file.out" 2>&1
        fi || { echo "$file: exit status $?"; cat "$file.out"; return 1; }
        awk '/loss of the last batch: / && $NF < 0.3 { n++ } END { exit n < '"$ranks"' }' "$file.out" || { echo "$file has not learned:"; cat "$file.out"; return 1; }
    done
    [ "$n" -ge 5 ]
}
own_parts() { # the programs of docs/extending.md that have a main run
    local n=0 file dir=$tmp/own_parts
    mkdir -p "$dir"
    awk -v out="$dir/part_" '
        /^```c$/ { on = 1; text = ""; next }
        /^```$/ { if (on && text ~ /main\(/) { n++; file = out n ".c"; printf "%s", text > file; close(file) } on = 0 }
        on { text = text $0 "\n" }' docs/extending.md
    for file in "$dir"/part_*.c; do
        compile "gcc c11" "$file" "$file.o" -DDT_LINKED && gcc "$file.o" "$tmp/impl_gcc_c11.o" -o "$file.x" $libs || return 1
        timeout 60 "$file.x" > "$file.out" 2>&1 || { echo "$file: exit status $?"; cat "$file.out"; return 1; }
        n=$((n + 1))
    done
    [ "$n" -ge 2 ]
}
program_links() { # mode, source: it compiles without a warning and links with dt.c, which was compiled as C
    local mode=$1 cc=${1% *} exe
    exe=$(mktemp "$tmp/program.XXXXXX")
    compile "$mode" "$2" "$exe.o" -DDT_LINKED && $cc "$exe.o" "$tmp/impl_gcc_c11.o" -o "$exe" $libs
}
source_of "$tmp/disorder.c" "dt_nn.h" -- 'int main(void)' '{' \
    '    dt_model *m = dt_model_new();' '    dt_sgd(m, .momentum = 0.9, .lr = 0.1);' '    return 0;' '}'
source_of "$tmp/cxx17.cc" "dt_nn.h" -- 'int main()' '{' \
    '    dt_model_opts with_seed;' '    with_seed.seed = 1;' \
    '    dt_model *m = dt_model_new(with_seed), *plain = dt_model_new();' \
    '    dt_optimizer_opts rate;' '    rate.lr = 0.1;' \
    '    dt_optimizer *opt = dt_sgd(m, rate), *other = dt_adamw(plain);' \
    '    dt_layer_opts size;' '    size.out = 1;' '    size.act = DT_ACT_NONE;' \
    '    dt_reduce_opts rows;' '    rows.dims = DT_DIM(1);' '    rows.keepdim = true;' \
    '    double first = 0, last = 0;' \
    '    for (int i = 0; i < 50; i++) {' \
    '        dt_tensor *x = dt_normal(0, 1, DT_SHAPE(32, 4));' \
    '        dt_tensor *loss = dt_mse_loss(dt_linear(m, "fc", x, size), dt_sum(x, rows));' \
    '        dt_backward(loss);' '        last = dt_item(loss);' '        if (!i) first = last;' \
    '        dt_step(opt);' '    }' \
    '    dt_optimizer_free(opt);' '    dt_optimizer_free(other);' '    dt_model_free(m);' '    dt_model_free(plain);' \
    '    return dt_check("cxx17") || !(last < 0.1 * first);' '}'
cxx17() { # compiler
    compile "$1 c++17" "$tmp/cxx17.cc" "$tmp/cxx17_$1.o" && "$1" "$tmp/cxx17_$1.o" "$tmp/impl_gcc_c11.o" -o "$tmp/cxx17_$1" $libs &&
        timeout 60 "$tmp/cxx17_$1"
}
aliases() { # header: each macro dt_x(...) under #ifdef DT__LIT is also defined as dt_x_with under its #else, and no other is
    awk '
        /^#ifdef DT__LIT$/ { on = 1; next }
        on && /^#else/ { on = 2; next }
        on && /^#endif/ { on = 0; next }
        on == 1 && /^#define dt_/ { name = $2; sub(/\(.*/, "", name); macro[name] = 1 }
        on == 2 && /^#define dt_/ { if ($3 != $2 "_with") print FILENAME ": " $2 " is " $3 " in C++17, not " $2 "_with"; alias[$2] = 1 }
        END {
            for (name in macro) if (!(name in alias)) print FILENAME ": " name " has no C++17 name: #define " name " " name "_with"
            for (name in alias) if (!(name in macro)) print FILENAME ": " name " has a C++17 name and no macro with options"
        }' "$1" > "$tmp/aliases_$1"
    [ ! -s "$tmp/aliases_$1" ] || { cat "$tmp/aliases_$1"; return 1; }
}
changes() { # CHANGELOG.md: the newest section, but for what is not released, is of DT_VERSION; what it calls renamed is gone, and the new names exist
    local v old new bad=0
    v=$(sed -n 's/^#define DT_VERSION "\(.*\)"$/\1/p' dt_base.h)
    [ "$(sed -n 's/^## //p' CHANGELOG.md | grep -vx Unreleased | head -n 1)" = "$v" ] || { echo "CHANGELOG.md: the first section is not ## $v"; return 1; }
    sed -n 's/^| `\(dt_[a-z0-9_]*\)` | `\(dt_[a-z0-9_]*\)` |$/\1 \2/p' CHANGELOG.md > "$tmp/renamed"
    [ "$(wc -l < "$tmp/renamed")" -gt 50 ] || { echo "CHANGELOG.md has no table of renamed names"; return 1; }
    words_of dt*.h > "$tmp/now"
    while read -r old new; do
        grep -qx "$new" "$tmp/now" || { echo "CHANGELOG.md: $old became $new, which no header has"; bad=1; }
        case $old in dt_dropout) continue ;; esac # is now the layer
        grep -hE "^(DT_API|#define|typedef|\\}).*[ *]$old(_with)?[(; ]" dt*.h && { echo "CHANGELOG.md: $old is renamed, and a header has it"; bad=1; }
    done < "$tmp/renamed"
    sed -n 's/^| `dt_.* | `\.[a-z_]*` | `\.\([a-z0-9_]*\)`.*|$/\1/p' CHANGELOG.md > "$tmp/options"
    [ -s "$tmp/options" ] || { echo "CHANGELOG.md has no table of renamed options"; return 1; }
    while read -r new; do
        grep -qE "\b$new DT_D" dt*.h || { echo "CHANGELOG.md: no option struct has .$new"; bad=1; }
    done < "$tmp/options"
    return $bad
}
roofline() { # docs/performance.md prints what bench_roofline prints
    grep -q 'the step at these peaks, which is %.2f of the measured one' bench/bench_roofline.c || { echo "bench_roofline.c says it otherwise"; return 1; }
    ! grep 'the step at these peaks' docs/performance.md | grep -v 'the step at these peaks, which is [0-9.]* of the measured one$'
}
links() { # a link of README.md or docs/*.md to a file of this repository leads somewhere
    local doc to
    for doc in README.md docs/*.md; do
        grep -oE '\]\([^)#:]+\)' "$doc" | sed 's/^](//; s/)$//' | while read -r to; do
            [ -e "$(dirname "$doc")/$to" ] || echo "$doc: the link to $to leads nowhere"
        done
    done > "$tmp/dead_links"
    [ ! -s "$tmp/dead_links" ] || { cat "$tmp/dead_links"; return 1; }
}
check "docs/family.svg is what docs/family.sh draws" family
check "README.md and docs/*.md: every name exists" documented
one "README.md has programs" doc_programs
check "docs/tutorial.md, collectives.md, pytorch.md: every program prints what the page says" outputs
one "every public name has a comment (tools/api.sh --check)" tools/api.sh --check
api_pages() { # the index has every function of the headers, and its links lead to places
    tools/api.sh "$tmp/api" > /dev/null || return 1
    grep -hoE '^DT_API [^(=]*\bdt_[a-z0-9_]+\(' dt.h dt_nn.h dt_comm.h | grep -oE 'dt_[a-z0-9_]+\(' | sed 's/($//; s/_with$//' | sort -u | while read -r name; do
        grep -q ">$name<" "$tmp/api/index.html" || echo "build/api/index.html has no $name"
    done > "$tmp/api_missing"
    grep -oE 'href="[^"#]+#[^"]+"' "$tmp/api/index.html" | sed 's/href="\(.*\)#\(.*\)"/\1 \2/' | while read -r page name; do
        grep -q "id=\"$name\"" "$tmp/api/$page" || echo "$page has no place $name"
    done >> "$tmp/api_missing"
    [ ! -s "$tmp/api_missing" ] || { head "$tmp/api_missing"; return 1; }
}
check "make api: pages for all headers, an index that leads to them" api_pages
check "README.md: each difference compiles, and what it makes of the program runs" readme_diffs
check "docs/extending.md: the programs run" own_parts
for mode in "gcc c11" "g++ c++20" "clang++ c++20"; do # C++20 wants options in the order in which they are declared
    command -v "${mode% *}" > /dev/null || continue
    [ -n "$DT_TEST_QUICK" ] && [ "$mode" = "clang++ c++20" ] && continue
    for file in "$tmp"/doc_*.c examples/*.c; do
        case $mode$file in gcc*examples/*) continue ;; esac # the Makefile compiles these
        check "a program of the documents, $(basename "$file"), compiles and links, $mode" program_links "$mode" "$file"
    done
    for h in $all; do
        case $mode in gcc*) continue ;; esac # these run as C, above
        check "$h: the program in its manual compiles and links, $mode" program_links "$mode" "$tmp/manual_$h.c"
    done
done
check "C++20: options in another order than declared are an error of the compiler" refused "order" program_links "g++ c++20" "$tmp/disorder.c"
check "C++17: a program with an option struct and plain names compiles and runs, g++" cxx17 g++
command -v clang++ > /dev/null && check "C++17: the same, clang++" cxx17 clang++
for h in $all; do check "$h: every macro with options has a C++17 name" aliases "$h"; done
check "README.md and docs/*.md: links to files" links
check "CHANGELOG.md: this version; renamed names and options" changes
check "docs/performance.md: the last line of each table is bench_roofline's" roofline
wait

count() { grep -c "^$1\$" "$tmp/results"; }
echo "$(count ok) passed, $(count FAIL) failed, $(count skip) skipped"
[ "$(count FAIL)" -eq 0 ] && [ "$(count ok)" -gt 0 ]
