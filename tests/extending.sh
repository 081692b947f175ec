#!/bin/bash
# extending.sh - the worked examples of docs/extending.md still work
#
#     tests/extending.sh [NAME ...]       checks docs/extending/NAME.patch, or all of them; NAME's copy of the tree stays
#     tests/extending.sh --update         copies the patches into docs/extending.md
#     tests/extending.sh --save NAME      makes docs/extending/NAME.patch from the files in build/extending/NAME, then --update
#
# Each patch is applied to a copy of the tree (build/extending/NAME; build/extending/base is the copy without a patch). The
# hunks must apply exactly: a tree that has changed around them is a failure that says what to do. The lines before the
# first hunk of a patch say what is done with the copy:
#     build: TEST ...                     builds these tests, warnings are errors
#     run: [VARIABLE=VALUE] TEST [ARGS]   runs one of them
#     nvcc: FILE                          compiles the CUDA file, if nvcc is installed
#     forget: FILE | TEXT | TARGET | WORDS
#                                         without the hunks of FILE that add TEXT, `make TARGET` fails with a message that has
#                                         WORDS (TARGET nvcc: compiling FILE does)
# One line a check: ok, FAIL (with the output) or skip.
cd "$(dirname "$0")/.." || exit 1
root=$PWD
work=$root/build/extending
doc=docs/extending.md
flags="-O0 -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Werror"
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null)
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that started this script
mkdir -p "$work" || exit 1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dt_extending.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT

# -------------------------------------------------------------------------------------------------- the document
# "<!-- patch: NAME -->" in the document is followed by a block with the patch, without the lines before its first hunk.
in_document() { sed -n 's/^<!-- patch: \([a-z_]*\) -->$/\1/p' "$doc"; }
shown() { sed -n '/^--- /,$p' "docs/extending/$1.patch"; }
update() {
    local name
    for name in $(in_document); do shown "$name" > "$tmp/$name.shown" || return 1; done
    awk -v dir="$tmp" '
        /^<!-- patch: [a-z_]+ -->$/ {
            print; print "```diff"
            while ((getline line < (dir "/" $3 ".shown")) > 0) print line
            print "```"
            skip = 2 # fences
            next
        }
        skip && /^```/ { skip--; next }
        skip == 1 { next }
        skip == 2 && /[^ ]/ { skip = 0 } # there was no block yet
        skip { next }
        { print }' "$doc" > "$tmp/doc" && cp "$tmp/doc" "$doc"
}
same_in_doc() { # the block of the document is the patch
    awk -v name="$1" '
        $0 == "<!-- patch: " name " -->" { on = 1; next }
        on == 1 && /^```diff$/ { on = 2; next }
        on == 2 && /^```$/ { exit }
        on == 2 { print }' "$doc" > "$tmp/in_doc"
    [ -s "$tmp/in_doc" ] || { echo "$doc has no block after a line '<!-- patch: $1 -->'"; return 1; }
    shown "$1" | diff "$tmp/in_doc" - > "$tmp/diff" && return 0
    head -20 "$tmp/diff"
    echo "copy it again: tests/extending.sh --update"
    return 1
}

# -------------------------------------------------------------------------------------------------- copies of the tree
base() { # the tree as it is, built without the patches; objects of an earlier run are kept
    mkdir -p "$work/base" && find "$work/base" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} + &&
        tar --exclude=./build --exclude=./.git --exclude=./data -cf - . | tar -xf - -C "$work/base" &&
        make -C "$work/base" -s -j2 CFLAGS="$flags" build/normal/libdt.a
}
save() { # name: the patch from the difference of the copies; the lines before the first hunk stay
    local file=$root/docs/extending/$1.patch
    [ -d "$work/$1/tests" ] || { echo "there is no build/extending/$1: run tests/extending.sh $1 first, which leaves it"; return 1; }
    { [ -f "$file" ] && sed '/^--- /,$d' "$file"
      (cd "$work" && diff -U2 -rN -x build -x '*.rej' -x '*.orig' base "$1") |
          sed -E '/^diff /d; s|^--- base/([^\t]*)\t.*|--- a/\1|; s|^\+\+\+ [a-z_]+/([^\t]*)\t.*|+++ b/\1|'
    } > "$tmp/saved"
    cp "$tmp/saved" "$file" && echo "wrote docs/extending/$1.patch"
}
lines_of() { sed '/^--- /,$d' "docs/extending/$1.patch" | sed -n "s/^$2: //p"; } # name, key
apply() { # name, patch file
    rm -rf "${work:?}/$1" && cp -a "$work/base" "$work/$1" || return 1
    patch -d "$work/$1" -p1 -F0 --no-backup-if-mismatch < "$2" > "$tmp/applied" 2>&1 && return 0
    grep -E 'FAILED|No such file|malformed|reversed|saving rejects' "$tmp/applied"
    echo "docs/extending/$1.patch does not apply to this tree: the lines around a change are different now. Edit the files in"
    echo "build/extending/$1 (the *.rej files beside them hold what could not be applied), check them with"
    echo "    make -C build/extending/$1 build/normal/TEST"
    echo "then run tests/extending.sh --save $1"
    return 1
}
builds() { # name
    local target=()
    for t in $(lines_of "$1" build); do target+=("build/normal/$t"); done
    make -C "$work/$1" -s -j2 CFLAGS="$flags" "${target[@]}"
}
runs() { # name, a line "run:"
    local line=$2 variables=''
    while [[ $line =~ ^([A-Z_]+=[^ ]*)\ (.*) ]]; do
        variables+="${BASH_REMATCH[1]} "
        line=${BASH_REMATCH[2]}
    done
    # shellcheck disable=SC2086
    (cd "$work/$1" && set -f && env $variables timeout 120 build/normal/$line) > "$tmp/ran" 2>&1
    local status=$?
    [ $status = 0 ] && grep -qE '^[1-9][0-9]* passed, 0 failed' "$tmp/ran" && return 0
    tail -20 "$tmp/ran"
    echo "exit status $status"
    return 1
}
as_cxx() { # name
    (cd "$work/$1" && g++ -x c++ -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only dt.c)
}
compiles() { # name, file: to PTX, which needs no GPU
    (cd "$work/$1" && "$nvcc" -std=c++17 -I. -arch=compute_75 -ptx "$2" -o "$tmp/out.ptx")
}
without() { # file, text: the patch on stdin without the hunks of the file that add the text
    awk -v file="$1" -v text="$2" '
        function flush() { # prints the complete hunk; the two lines that name the file come before its first hunk
            if (hunk != "" && !drop) { printf "%s%s", head, hunk; head = "" }
            hunk = ""
            drop = 0
        }
        /^--- / { flush(); head = $0 "\n"; getline; head = head $0 "\n"; here = $2 == "b/" file; next }
        /^@@ / { flush(); hunk = $0 "\n"; next }
        hunk != "" { hunk = hunk $0 "\n"; if (here && /^\+/ && index($0, text)) { drop = 1; dropped = 1 } }
        END { flush(); exit !dropped }'
}
forgotten() { # name, file, text, target, words
    without "$2" "$3" < "docs/extending/$1.patch" > "$tmp/part.patch" || { echo "no hunk of $2 adds '$3'"; return 1; }
    rm -rf "$work/forgotten" && cp -a "$work/base" "$work/forgotten" &&
        patch -d "$work/forgotten" -p1 --no-backup-if-mismatch < "$tmp/part.patch" > /dev/null || return 1
    if [ "$4" = nvcc ]; then compiles forgotten "$2" > "$tmp/out" 2>&1
    else make -C "$work/forgotten" -s CFLAGS="$flags" "$4" > "$tmp/out" 2>&1; fi && { echo "it compiles"; return 1; }
    grep -qF -- "$5" "$tmp/out" || { echo "the message does not have '$5':"; cat "$tmp/out"; return 1; }
}

case $1 in
--update) update; exit ;;
--save) save "$2" && update; exit ;;
-*) echo "extending.sh: unknown option $1; known: --update, --save NAME"; exit 1 ;;
esac

# -------------------------------------------------------------------------------------------------- the checks
ok=0 failed=0 skipped=0
check() { # what, command...
    local what=$1
    shift
    if "$@" > "$tmp/log" 2>&1; then
        echo "ok   $what"
        ok=$((ok + 1))
    else
        echo "FAIL $what"
        head -n 30 "$tmp/log" | sed 's/^/       /'
        failed=$((failed + 1))
        return 1
    fi
}
skip() { # what, reason
    echo "skip $1: $2"
    skipped=$((skipped + 1))
}
patches() { # every patch is in the document, every block has a patch
    diff <(in_document | sort) <(cd docs/extending && printf '%s\n' *.patch | sed 's/\.patch$//' | sort)
}
if [ $# -gt 0 ]; then names=$*; else
    names=$(in_document)
    check "$doc: a block for each patch (<: only in the document, >: only a file)" patches
fi
if check "the tree without a patch builds" base; then
    for name in $names; do
        before=$failed
        check "$name: the diff in $doc is docs/extending/$name.patch" same_in_doc "$name"
        check "$name: the patch applies" apply "$name" "docs/extending/$name.patch" || continue
        check "$name: builds without a warning" builds "$name" || continue
        check "$name: the headers compile as C++17" as_cxx "$name"
        while read -r line; do check "$name: $line" runs "$name" "$line"; done < <(lines_of "$name" run)
        for file in $(lines_of "$name" nvcc); do
            if [ -n "$nvcc" ]; then check "$name: nvcc compiles $file" compiles "$name" "$file"
            else skip "$name: nvcc compiles $file" "nvcc is not installed"; fi
        done
        while IFS='|' read -r file text target words; do
            read -r file <<< "$file"; read -r text <<< "$text"; read -r target <<< "$target"; read -r words <<< "$words"
            if [ "$target" = nvcc ] && [ -z "$nvcc" ]; then skip "$name: without '$text' in $file" "nvcc is not installed"
            else
                check "$name: does not compile without '$text' in $file" forgotten "$name" "$file" "$text" "$target" "$words"
            fi
        done < <(lines_of "$name" forget)
        rm -rf "$work/forgotten"
        [ $# -gt 0 ] || [ $failed -gt "$before" ] || rm -rf "${work:?}/$name" # it stays to be edited and saved
    done
fi
echo "$ok passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $ok -gt 0 ]
