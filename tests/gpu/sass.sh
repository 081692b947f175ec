#!/bin/bash
# sass.sh - counts the machine instructions of every kernel, if a disassembler can be had
#
#     tests/gpu/sass.sh TABLE CUDA 'ARCH ...' OBJECT ...
#
# TABLE: "sm_80 instructions in-the-main-loop kernel". The main loop is the longest one: from the target of a branch backwards
# to the branch; 0: there is none. NOP and the loop behind the last instruction are not counted. The disassembler is
# cuobjdump: of CUOBJDUMP, the PATH, the toolkit, or the Python package nvidia-cuda-cuobjdump. Without it TABLE is empty and
# the reason is one line.
table=$1 cuda=$2 archs=$3
shift 3
package=$(python3 -c 'import nvidia, os
found = [os.path.join(d, "cu13", "bin", "cuobjdump") for d in nvidia.__path__]
print(next((p for p in found if os.path.exists(p)), ""))' 2> /dev/null)
tool=
for t in "$CUOBJDUMP" "$(command -v cuobjdump)" "$cuda/bin/cuobjdump" "$package"; do
    [ -n "$t" ] && [ -x "$t" ] && tool=$t && break
done
: > "$table.new"
if [ -z "$tool" ]; then
    echo "skip: no cuobjdump: SASS is not counted (pip install nvidia-cuda-cuobjdump, or CUOBJDUMP=its path)"
else
    for arch in $archs; do
        for o in "$@"; do
            PATH="$(dirname "$tool"):$PATH" "$tool" -sass -arch "sm_$arch" "$o" 2> /dev/null
        done | awk -v arch="sm_$arch" '
            function row() { if (name != "") printf "%s %d %d %s\n", arch, n, loop, name }
            /Function : / { row(); name = $3; n = loop = 0; split("", at) }
            match($0, /^ +\/\*[0-9a-f]+\*\//) {
                address = $1
                gsub(/[\/*]/, "", address)
                if (/ NOP ?;/) next
                if (match($0, /BRA[^;]* 0x[0-9a-f]+ *;/)) {
                    target = substr($0, RSTART, RLENGTH)
                    sub(/.* 0x/, "", target)
                    sub(/ *;.*/, "", target)
                    while (length(target) < 4) target = "0" target
                    if (target == address) next
                    if (target in at && n + 1 - at[target] > loop) loop = n + 1 - at[target]
                }
                at[address] = n++
            }
            END { row() }' >> "$table.new"
    done
    echo "$(grep -c . "$table.new") kernels disassembled by $tool"
fi
mv "$table.new" "$table"
