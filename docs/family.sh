#!/bin/sh
# family.sh - draws docs/family.svg from the headers themselves
#
#     docs/family.sh > docs/family.svg          (tests/check_headers.sh compares the two)
#
# Rows and arrows come from the #include lines, the words in a box from line 1 of its header. An arrow that stands inside
# an #if about an implementation is dashed, and is left out where solid arrows lead to the same header. Only the column
# of a box is chosen by hand, in `columns` below: 0 is left, 6 is right. The background is opaque, so that the picture
# reads the same on a light and on a dark page.
cd "$(dirname "$0")/.." || exit 1
columns="dt_base.h 2  dt_plot.h 0  dt_io.h 1  dt.h 2  dt_plan.h 3  dt_net.h 4  dt_nn.h 0  dt_data.h 1  dt_cpu.h 2  dt_ops.h 6 \
    dt_cuda.h 3  dt_msg.h 4  dt_comm.h 4  dt_dist.h 0  dt_pipe.h 0  dt_serve.h 1  dt_scale.h 5  dt_elastic.h 2  dt_nccl.h 2  dt_sim.h 3  dt_mpi.h 4  dt_ps.h 1 \
    dt_layers.h 0.5"
LC_ALL=C awk -v columns="$columns" '
FNR == 1 {
    file[++nfiles] = FILENAME
    depth = 0
    text = $0
    sub(/^[^-]*- v[0-9.]* - /, "", text)
    sub(/ *\*\/ *$/, "", text)
    about[FILENAME] = text
}
/^# *if/ {
    depth++
    inside[depth] = (depth > 1 && inside[depth - 1]) || /IMPLEMENTATION/
}
/^# *endif/ { depth-- }
/^# *include "dt[a-z_]*\.h"/ {
    split($0, quoted, "\"")
    if (quoted[2] == FILENAME) next
    if (depth > 0 && inside[depth]) dashed[FILENAME, quoted[2]] = 1
    else solid[FILENAME, quoted[2]] = 1
}

function fail(message) { print "docs/family.sh: " message | "cat 1>&2"; failed = 1; exit 1 }
function height(f,    i, h, most) { # rows below it
    if (f in row) return row[f]
    if (++level > 50) fail("the #include lines form a circle: " f)
    most = -1
    for (i = 1; i <= nfiles; i++) if ((f, file[i]) in solid) { h = height(file[i]); if (h > most) most = h }
    level--
    return row[f] = most + 1
}
function reaches(a, b,    i) { # by solid arrows
    if ((a, b) in solid) return 1
    for (i = 1; i <= nfiles; i++) if ((a, file[i]) in solid && reaches(file[i], b)) return 1
    return 0
}
function middle(f) { return 20 + W / 2 + column[f] * (W + GAP) }
function top(f) { return TOP + (most_row - row[f]) * (H + SPACE) }
# Where the arrows between a and the others touch its edge: side by side, in the order of their other ends.
function port(a, b, up,    i, n, k, f) {
    n = k = 0
    for (i = 1; i <= nfiles; i++) {
        f = file[i]
        if (!((up ? f SUBSEP a : a SUBSEP f) in arrow)) continue
        n++
        if (middle(f) < middle(b)) k++
    }
    return middle(a) + (k - (n - 1) / 2) * (wide[a] * 0.8 / (n > 4 ? n : 4))
}
function draw_arrow(a, b, how,    x1, y1, x2, y2, bend) {
    if (row[a] > row[b]) { x1 = port(a, b, 0); y1 = top(a) + H; x2 = port(b, a, 1); y2 = top(b) }
    else { x1 = middle(a) - wide[a] / 2 + 12; y1 = top(a); x2 = middle(b) - wide[b] / 2 + 12; y2 = top(b) + H } # upwards
    bend = (y2 - y1) * 0.45
    printf "<path class=\"%s\" d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\" marker-end=\"url(#%s)\"/>\n", how, x1, y1, x1,
           y1 + bend, x2, y2 - bend, x2, y2 - (y2 > y1 ? 2 : -2), how
}
function draw_box(f,    x, y, i, n, word, line, lines) {
    x = middle(f)
    y = top(f)
    printf "<rect class=\"box row%d\" x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", row[f],
           x - wide[f] / 2, y, wide[f], H
    n = split(about[f], word, " ")
    lines = 0
    line[0] = ""
    for (i = 1; i <= n; i++) {
        if (length(line[lines]) + 1 + length(word[i]) > wide[f] / 6.9) line[++lines] = word[i]
        else line[lines] = line[lines] (line[lines] == "" ? "" : " ") word[i]
    }
    if (lines > 3) fail("the words of line 1 of " f " do not fit into its box: make them shorter")
    y += (H - 20 - 14 * (lines + 1)) / 2
    printf "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, y + 15, f
    for (i = 0; i <= lines; i++) {
        gsub(/&/, "\\&amp;", line[i])
        printf "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, y + 31 + 14 * i, line[i]
    }
}
END {
    if (failed) exit 1
    W = 184; H = 88; GAP = 16; SPACE = 72; TOP = 66; most_row = 0
    n = split(columns, part, " ")
    for (i = 1; i < n; i += 2) column[part[i]] = part[i + 1]
    for (i = 1; i <= nfiles; i++) {
        f = file[i]
        if (!(f in column)) fail(f " has no column: add it to the list in this script")
        if (height(f) > most_row) most_row = row[f]
        wide[f] = height(f) ? W : 3 * W + 2 * GAP
    }
    for (i = 1; i <= nfiles; i++) for (k = 1; k <= nfiles; k++) {
        a = file[i]; b = file[k]
        if ((a, b) in solid || ((a, b) in dashed && !reaches(a, b) && row[a] > row[b])) arrow[a, b] = 1
        if (i < k && row[a] == row[b] && column[a] - column[b] < 1 && column[b] - column[a] < 1)
            fail("the boxes of " a " and " b " overlap: change a column in this script")
    }
    width = 40 + 6 * W + 5 * GAP
    tall = TOP + (most_row + 1) * H + most_row * SPACE + 20
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n",
           width, tall, width, tall
    print "<style>text{font:11px sans-serif;fill:#333;text-anchor:middle}.name{font-size:14px;font-weight:bold;fill:#111}" \
          ".title{font-size:15px;font-weight:bold;text-anchor:start}.note{font-size:12px;text-anchor:start}" \
          ".box{stroke:#555;stroke-width:1.2;fill:#eef3fa}.row0{fill:#e8e8e8}.row3{fill:#fdf3e3}" \
          ".solid,.dashed{fill:none;stroke-width:1.6}.solid{stroke:#2468b4}.dashed{stroke:#c8321e;stroke-dasharray:6 4}</style>"
    m = "<marker id=\"%s\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\"" \
        " orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"%s\"/></marker>"
    printf "<defs>" m m "</defs>\n", "solid", "#2468b4", "dashed", "#c8321e"
    printf "<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#fff\"/>\n", width, tall
    print "<text class=\"title\" x=\"20\" y=\"28\">The headers of dt</text>"
    print "<text class=\"note\" x=\"20\" y=\"48\">An arrow goes from a header to one that it includes." \
          " Dashed: its implementation includes it, its declarations do not.</text>"
    for (i = 1; i <= nfiles; i++) for (k = 1; k <= nfiles; k++) {
        a = file[i]; b = file[k]
        if ((a, b) in solid) draw_arrow(a, b, "solid")
        else if ((a, b) in dashed && !reaches(a, b)) draw_arrow(a, b, "dashed")
    }
    for (i = 1; i <= nfiles; i++) draw_box(file[i])
    print "</svg>"
}' dt*.h
