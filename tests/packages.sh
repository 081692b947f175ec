#!/bin/bash
# packages.sh - a user's project builds and runs with each way to get dt: make install with cc, pkg-config and CMake's
# find_package; CMake's add_subdirectory; the single header, as C and as C++
#
#     tests/packages.sh          run by make test-all, after the library and the tools are built
# One line a check: ok, FAIL (with the output) or skip; ends with "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
root=$PWD
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dt packages.XXXXXX") || exit 1 # the space is on purpose
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0 skipped=0
check() { # what, command...
    local what=$1
    shift
    if "$@" > "$tmp/log" 2>&1; then
        echo "ok   $what"
        passed=$((passed + 1))
    else
        echo "FAIL $what"
        tail -n 20 "$tmp/log"
        failed=$((failed + 1))
    fi
}
have() { # program
    command -v "$1" > /dev/null && return 0
    echo "skip $1: not installed"
    skipped=$((skipped + 1))
    return 1
}
cat > "$tmp/app.c" << 'EOF'
#include "dt_nn.h"
#include "dt_data.h"
int main(void)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    for (int i = 0; i < 3; i++) {
        dt_backward(dt_mean(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 1)));
        dt_step(opt);
    }
    dt_optimizer_free(opt);
    dt_model_free(m);
    return dt_check("app");
}
EOF
{ echo '#define DT_IMPLEMENTATION'; cat "$tmp/app.c"; } > "$tmp/app_macro.c"
sed 's/dt_nn.h/dt_single.h/; /dt_data.h/d' "$tmp/app_macro.c" > "$tmp/app_single.c"
sed 's/dt_nn.h/dt_single.h/; /dt_data.h/d; s/int main(void)/int part(void); int part(void)/' "$tmp/app.c" > "$tmp/app_part.c"
cat > "$tmp/CMakeLists.txt" << 'EOF'
cmake_minimum_required(VERSION 3.13)
project(app C)
if(DT_SOURCE)
    add_subdirectory("${DT_SOURCE}" dt)
else()
    find_package(dt 0.2 REQUIRED)
endif()
add_executable(app app.c)
target_link_libraries(app PRIVATE dt::dt)
add_executable(app_macro EXCLUDE_FROM_ALL app_macro.c)
target_link_libraries(app_macro PRIVATE dt::headers)
EOF
in_log() { "$@" && ! grep -n 'warning' "$tmp/log"; }
with_cmake() { # build directory, more options...
    local build=$1
    shift
    cmake -S "$tmp" -B "$build" "$@" && cmake --build "$build" -j2 && "$build/app"
}

refuses() { ! "$@"; }
stage=$tmp/stage prefix=/opt/dt
check "make install DESTDIR= PREFIX=" make --no-print-directory install DESTDIR="$stage" PREFIX=$prefix
there=$stage$prefix
check "a program with the installed library" in_log \
    cc -Wall -Wextra -I"$there/include/dt" -DDT_LINKED "$tmp/app.c" -L"$there/lib" -ldt -lm -lpthread -ldl -o "$tmp/app"
check "it runs" "$tmp/app"
check "the installed dtrun starts it" "$there/bin/dtrun" -n 2 "$tmp/app"
check "bash completes dtreport" bash -c ". '$there/share/bash-completion/completions/dtreport' && complete -p dtreport"
if have pkg-config; then
    real=$(mktemp -d "${TMPDIR:-/tmp}/dt_packages.XXXXXX") # pkg-config wants no space
    check "make install PREFIX=" make --no-print-directory install PREFIX="$real"
    export PKG_CONFIG_PATH=$real/lib/pkgconfig
    check "pkg-config knows the version" test "$(pkg-config --modversion dt)" = \
        "$(sed -n 's/^#define DT_VERSION "\(.*\)"/\1/p' dt_base.h)"
    # shellcheck disable=SC2046
    check "a program with pkg-config" cc "$tmp/app.c" $(pkg-config --cflags --libs dt) -o "$tmp/app_pc"
    check "it runs" "$tmp/app_pc"
    unset PKG_CONFIG_PATH
    rm -rf "$real"
fi
if have cmake; then
    check "CMake: find_package(dt)" with_cmake "$tmp/found" -DCMAKE_PREFIX_PATH="$there"
    check "CMake: dt::headers and DT_IMPLEMENTATION" cmake --build "$tmp/found" --target app_macro
    check "CMake: add_subdirectory" with_cmake "$tmp/sub" -DDT_SOURCE="$root"
fi
check "make uninstall" make --no-print-directory uninstall DESTDIR="$stage" PREFIX=$prefix
check "nothing is left" test -z "$(find "$stage" -type f)"

check "make single" make --no-print-directory single
flags="-Wall -Wextra -Wpedantic -Wshadow -Werror -Ibuild"
# shellcheck disable=SC2086
check "the single header in two files" cc $flags -O0 -DDT_NO_AVX2 "$tmp/app_single.c" "$tmp/app_part.c" -o "$tmp/single" -lm -lpthread -ldl
check "it runs" env DT_LOG=off "$tmp/single"
# shellcheck disable=SC2086
have g++ && check "the single header as C++20" g++ $flags -std=c++20 -fsyntax-only -x c++ "$tmp/app_single.c"
# shellcheck disable=SC2086
have clang && check "the single header as C99, clang" clang $flags -std=c99 -fsyntax-only "$tmp/app_single.c"
# ---- from Python, which has no macros: examples/digits.py reads the structures of options from the headers
if have python3; then
    check "make build/libdt.so" make --no-print-directory build/libdt.so CFLAGS="-O1 -g0"
    check "examples/digits.py trains" python3 examples/digits.py --epochs 2
    check "examples/digits.py --help" python3 examples/digits.py --help
    check "examples/digits.py refuses other options" refuses python3 examples/digits.py --no-such-option
    check "examples/digits.py says which file is missing" refuses python3 examples/digits.py --data /nowhere
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
