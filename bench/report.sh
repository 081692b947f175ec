#!/bin/bash
# report.sh - runs every benchmark there is and writes build/report/index.html: ratios to peers, convolutions and GEMM
# against the machine's peak, the machine itself. What a benchmark prints is its data:
#
#     NAME: dt V unit, PEER V unit, ratio R        a bar: how many times the peer's speed
#     NAME: ... V GFLOP/s (P % of peak) ...        bars: per cent of the FMA peak
#     a table of bench_roofline                    bars: per cent of the step
#     picture: PATH                                an SVG that the benchmark drew
#
# report.sh [file.txt ...]: takes outputs that were saved instead of running anything. The output of each run stays
# beside the page.
cd "$(dirname "$0")/.." || exit 1
dir=build/report
mkdir -p $dir || exit 1
if [ $# -eq 0 ]; then
    files=()
    for source in bench/bench_*.c; do
        name=$(basename "$source" .c)
        echo "report: $name"
        make --no-print-directory -s "bench-${name#bench_}" > "$dir/$name.txt" 2>&1 ||
            echo "report: $name ended with status $? (see $dir/$name.txt)"
        files+=("$dir/$name.txt")
    done
else
    files=("$@")
fi

machine() {
    lscpu 2> /dev/null | awk -F': *' '/^Model name|^CPU\(s\)|^L[123]|^Flags/ {
        if ($1 == "Flags") { f = ""; n = split($2, a, " "); for (i = 1; i <= n; i++)
            if (a[i] ~ /^(avx|avx2|fma|f16c|avx512f)$/) f = f " " a[i]; print "instructions:" f } else print $1 ": " $2 }'
    free -h 2> /dev/null | awk '/^Mem/ { print "memory: " $2 }'
    echo "kernel: $(uname -sr)"
    echo "compiler: $(gcc --version | head -1)"
    for py in python3 build/venv/bin/python3; do
        $py -c 'import torch; print("PyTorch:", torch.__version__.split("+")[0])' 2> /dev/null && break
    done
    echo "date: $(date -u +%Y-%m-%d)"
}
escape() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g'; }

# lines "group<TAB>label<TAB>value<TAB>text" as an SVG of horizontal bars; $1: the value of
# the reference line, $2: the end, $3: the value from which a bar is blue (default: the reference), $4: where longer bars are cut
bars() {
    awk -F"\t" -v ref="$1" -v top="$2" -v blue="${3:-$1}" -v most="${4:-1e9}" '
        { n++; group[n] = $1; label[n] = $2; value[n] = $3 > most ? most : $3; text[n] = $4; if (value[n] > top) top = value[n] }
        END {
            h = 22; left = 320; width = 450; y = 8
            for (i = 1; i <= n; i++) total += (group[i] != group[i - 1] ? 28 : 0) + h
            printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n", total + 24
            for (i = 1; i <= n; i++) {
                if (group[i] != group[i - 1]) { y += 28; printf "<text x=\"4\" y=\"%d\" font-weight=\"bold\">%s</text>\n", y - 8, group[i] }
                w = value[i] / top * width
                printf "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#333\">%s</text>", left - 8, y + 13, label[i]
                printf "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"16\" fill=\"%s\"/>", left, y, w, (value[i] >= blue ? "#2563a8" : "#c8641e")
                printf "<text x=\"%.1f\" y=\"%d\" fill=\"#333\">%s</text>\n", left + w + 6, y + 13, text[i]
                y += h
            }
            x = left + ref / top * width
            printf "<line x1=\"%.1f\" y1=\"8\" x2=\"%.1f\" y2=\"%d\" stroke=\"#888\" stroke-dasharray=\"3 3\"/>\n</svg>\n", x, x, y
        }'
}
ratios() { # of one file
    escape < "$1" | sed -nE 's/^([^:]+): dt ([0-9.]+) ([^,]+), (.*) ([0-9.]+) [^, ]+, ratio ([0-9.]+).*$/\4\t\1\t\6\t\6  (\2 \3)/p' | sort -s -t "$(printf '\t')" -k1,1
}
peaks() { # "NAME: forward 70 GFLOP/s (68 % of peak), data 60 (58 %), weights ..." and "NAME: dt 88 GFLOP/s, 86 % of ..."
    escape < "$1" | awk '
        match($0, /^[^:]+: /) {
            name = substr($0, 1, RLENGTH - 2); rest = substr($0, RLENGTH + 1)
            if (rest ~ /% of [0-9]+ x the FMA peak/) {
                split(rest, a, /[ ,]+/); match(rest, /[0-9]+ % of/); p = substr(rest, RSTART, RLENGTH) + 0
                printf "GEMM\t%s\t%d\t%d %%  (%s GFLOP/s)\n", name, p, p, a[2]
            } else while (match(rest, /[a-z]+ [0-9.]+( GFLOP\/s)? \([0-9]+ %/)) {
                one = substr(rest, RSTART, RLENGTH); rest = substr(rest, RSTART + RLENGTH)
                split(one, a, " "); p = one; sub(/.*\(/, "", p)
                printf "%s\t%s\t%d\t%d %%  (%s GFLOP/s)\n", a[1], name, p + 0, p + 0, a[2]
            }
        }' | sort -s -t "$(printf '\t')" -k1,1
}
shares() { # the tables of bench_roofline: a net's kernels by their share of the step
    escape < "$1" | awk '
        /^[a-z0-9]+-(train|infer)-[0-9]+t: / { net = $1; sub(/:$/, "", net); next }
        net != "" && NF >= 8 && $NF ~ /^[0-9.]+$/ && $(NF - 4) ~ /^[0-9.]+$/ {
            name = $1; for (i = 2; i <= NF - 7; i++) name = name " " $i
            text = $(NF - 3) > 0 ? sprintf("%s GFLOP/s, %s %% of the peak", $(NF - 3), $(NF - 2)) : sprintf("%s GB/s", $(NF - 1))
            if ($(NF - 4) >= 2) printf "%s\t%s\t%s\t%s %%  (%s)\n", net, name, $(NF - 4), $(NF - 4), text
        }'
}

{
    echo '<!doctype html><html lang="en"><meta charset="utf-8"><title>dt: measured</title>'
    echo '<style>body{font-family:sans-serif;max-width:1000px;margin:2em auto;color:#222}pre{background:#f4f4f4;padding:1em}</style>'
    echo '<h1>dt: measured</h1><h2>The machine</h2><pre>'
    machine | escape
    echo '</pre>'
    for f in "${files[@]}"; do
        name=$(basename "$f" .txt)
        if [ -n "$(ratios "$f")" ]; then
            echo "<h2>$name: speed as a multiple of the peer's</h2>"
            ratios "$f" | bars 1 1.5 1 5
        fi
        if [ -n "$(peaks "$f")" ]; then
            echo "<h2>$name: per cent of the FMA peak</h2>"
            peaks "$f" | bars 100 100 0
        fi
        if [ -n "$(shares "$f")" ]; then
            echo "<h2>$name: where a step goes, per cent</h2>"
            shares "$f" | bars 0 40 0
        fi
        for picture in $(sed -n 's/^picture: //p' "$f"); do
            [ -f "$picture" ] && cat "$picture"
        done
        echo "<details><summary>$name: all it printed</summary><pre>"
        escape < "$f"
        echo '</pre></details>'
    done
    echo '</html>'
} > $dir/index.html
echo "report: $dir/index.html"
