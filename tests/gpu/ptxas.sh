#!/bin/bash
# ptxas.sh - reads what ptxas -v said of every kernel and architecture, and writes a table of it
#
#     tests/gpu/ptxas.sh TABLE REGISTERS 'ARCH ...' OBJECT ...
#
# Beside each object lies its log: kernels-a.o, kernels-a.log. No spill, no stack frame, at most 48 KiB of static shared
# memory, and the registers of a block fit into a multiprocessor: a block is as large as the kernel's launch bounds say
# (.maxntid in the PTX of the object), 256 threads where they say nothing. What the programs really launch is checked
# against REGISTERS, the most that a kernel needs on any architecture, when they run (DT_EMU_REGS).
table=$1 registers=$2 archs=$3
shift 3
{
    for o in "$@"; do grep -aE '^(\.visible |\.weak )*\.entry |^\.maxntid ' "$o"; done
    echo "LOGS"
    for o in "$@"; do cat "${o%.o}.log" || echo "ptxas error: no log of $o"; done
} | awk -v archs="$archs" -v table="$table.new" -v registers="$registers.new" '
    function bad(arch, what) { printf "FAIL sm_%s: %s: %s\n", arch, name, what; failed[arch] = 1; any = 1 }
    function number(s, before) { return match(s, "[0-9]+ " before) ? substr(s, RSTART, RLENGTH) + 0 : 0 }
    function row() { # of the kernel that was read last
        if (name == "") return
        if (spill) bad(arch, spill " bytes of spills")
        else if (stack) bad(arch, stack " bytes of local memory")
        if (shared > 49152) bad(arch, shared " bytes of static shared memory")
        if (!used) bad(arch, "no registers were reported")
        threads = name in block ? block[name] : 256
        up = int((used + 7) / 8) * 8 # registers are given in eights
        if (up * threads > 65536) bad(arch, used " registers for " threads " threads")
        printf "%-6s %4d %6d %5d %5d  %s\n", "sm_" arch, used, shared, threads, stack + spill, name > table
        if (used > most[name]) most[name] = used
        n[arch]++
        name = ""
    }
    BEGIN { print "arch   regs shared block local  kernel" > table }
    !logs && /\.entry/ { entry = $0; sub(/.*\.entry /, "", entry); sub(/[( ].*/, "", entry); next }
    !logs && /^\.maxntid/ { gsub(/,/, ""); block[entry] = $2 * ($3 ? $3 : 1) * ($4 ? $4 : 1); next }
    /^LOGS$/ { logs = 1; next }
    /Compiling entry function/ {
        row()
        split($0, part, "\047")
        name = part[2]
        arch = substr(part[4], 4)
        used = shared = stack = spill = 0
        next
    }
    /bytes stack frame/ {
        stack = number($0, "bytes stack")
        spill = number($0, "bytes spill s") + number($0, "bytes spill l")
    }
    /Used [0-9]+ registers/ { used = number($0, "registers"); shared = number($0, "bytes smem") }
    /error|warning/ { print; any = other = 1 }
    END {
        row()
        count = split(archs, a, " ")
        for (i = 1; i <= count; i++) {
            if (!n[a[i]] || n[a[i]] != n[a[1]]) {
                printf "FAIL sm_%s: %d kernels, sm_%s has %d\n", a[i], n[a[i]], a[1], n[a[1]]
                failed[a[i]] = any = 1
            }
            printf "%s sm_%s: %d kernels\n", failed[a[i]] ? "FAIL" : "ok  ", a[i], n[a[i]]
            if (failed[a[i]]) fails++
            else passed++
        }
        for (k in most) print k, most[k] > registers
        if (other) fails++
        printf "%d passed, %d failed, 0 skipped\n", passed, fails
        exit any
    }'
status=$?
mv "$table.new" "$table" && mv "$registers.new" "$registers" || exit 1 # at once: another program may be reading it
exit $status
