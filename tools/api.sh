#!/bin/bash
# api.sh - reference pages from the comments of the headers
#
#     tools/api.sh DIR          writes DIR/index.html, which can be searched, and a page for each header
#     tools/api.sh --check      prints the public names that no comment explains; exit 1 if there are any
#
# The public part of a header is between its first section and its include guard's #endif. A paragraph is what stands between
# two empty lines: comments and declarations. A name is explained by a comment behind it, or by one above it in its paragraph.
# A paragraph that is only a comment explains the next one. Names of options (dt_x_opts) are explained with their call.
cd "$(dirname "$0")/.." || exit 1
case $1 in
'' | -h | --help) sed -n '2,/^cd/s/^# \{0,1\}//p' "tools/$(basename "$0")" && exit $([ -n "$1" ]; echo $?) ;;
--check) out='' ;;
-*) echo "api.sh: unknown option $1; see --help" >&2 && exit 2 ;;
*) out=$1 && mkdir -p "$out" || exit 1 ;;
esac
first='dt_base.h dt.h dt_ops.h dt_nn.h dt_layers.h dt_data.h dt_dist.h dt_comm.h dt_plan.h' # the order of the list; then the others
version=$(sed -n 's/^#define DT_VERSION "\(.*\)"/\1/p' dt_base.h)
LC_ALL=C awk -v out="$out" -v version="$version" '
function html(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s); return s }
function sentence(s,   p) { # the first one of a comment
    gsub(/[ \t\n]+/, " ", s)
    sub(/^ /, "", s)
    p = match(s, /[.:;] /)
    return p ? substr(s, 1, RSTART) : s
}
function head(title) {
    return "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>" title "</title>" \
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:auto;padding:1em;color:#222;background:#fff}" \
        "pre{background:#f4f4f4;padding:.6em;white-space:pre-wrap;font-size:.85em}td{vertical-align:top;padding:.1em .8em .1em 0}" \
        "h3{margin:1.4em 0 .2em}input{font:inherit;width:100%;box-sizing:border-box;padding:.3em}a{color:#0550ae}table{word-break:break-word}" \
        ".c{color:#57606a}@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}pre{background:#242424}a{color:#79b8ff}.c{color:#9aa4ad}}</style>"
}
function prose(s,   n, i, row, out, kind, last) { # a comment: paragraphs, and what is indented as it is
    n = split(s, row, "\002")
    last = ""
    for (i = 1; i <= n; i++) {
        kind = row[i] ~ /^ *$/ ? "" : row[i] ~ /^    / ? "pre" : "p"
        if (kind == "" && last == "pre" && row[i + 1] ~ /^    /) { out = out "\n"; continue }
        if (kind != last && last != "") out = out "</" last ">\n"
        if (kind != last && kind != "") out = out "<" kind ">"
        if (kind != "") out = out html(row[i]) "\n"
        last = kind
    }
    return last == "" ? out : out "</" last ">\n"
}
function signature(s) { # as users call it
    sub(/^DT_API +/, "", s)
    if (s ~ /DT_OPT0\(/) {
        sub(/_with\(/, "(", s)
        s = gensub_opts(s)
    }
    gsub(/ DT_D;/, ";", s)
    gsub(/ DT_D,/, ",", s)
    sub(/ +DT__PRINTF\([0-9, ]*\)/, "", s)
    return s
}
function gensub_opts(s,   name) {
    if (!match(s, /dt_[a-z0-9_]+ o DT_OPT0\([a-z0-9_]+\)/)) return s
    name = substr(s, RSTART, RLENGTH)
    sub(/ o .*/, "", name)
    return substr(s, 1, RSTART - 1) "options of " name substr(s, RSTART + RLENGTH)
}
function name_of(line,   s) { # the public name that a line of code declares; "" if it declares none
    if (line ~ /^#define [dD][tT]_[A-Za-z0-9_]+/) { s = line; sub(/^#define /, "", s); sub(/[^A-Za-z0-9_].*/, "", s); return s }
    if (line ~ /^DT_API/ && match(line, /dt_[a-z0-9_]+\(/)) return substr(line, RSTART, RLENGTH - 1)
    if (line ~ /^typedef .*\(\*dt_[a-z0-9_]+\)/ && match(line, /\(\*dt_[a-z0-9_]+/)) return substr(line, RSTART + 2, RLENGTH - 2)
    if (line ~ /^typedef (struct|enum|union)? ?.*[ *]dt_[a-z0-9_]+;/ && line !~ /\{/ && match(line, /dt_[a-z0-9_]+;/)) return substr(line, RSTART, RLENGTH - 1)
    if (line ~ /^typedef (struct|enum|union) ?(dt_[a-z0-9_]+)? ?\{/ && match(line, /dt_[a-z0-9_]+ \{/)) return substr(line, RSTART, RLENGTH - 2)
    if (line ~ /^\} dt_[a-z0-9_]+;/ && match(line, /dt_[a-z0-9_]+/)) return substr(line, RSTART, RLENGTH)
    return ""
}
function flush_paragraph(   i, n, line, name, plain, text, own, incomment, code, seen, skip, c, hold) {
    if (!nlines) return
    code = text = own = ""
    seen = pending
    incomment = skip = 0
    delete got
    n = 0
    for (i = 1; i <= nlines; i++) {
        line = lines[i]
        if (line ~ /^#ifdef DT__LIT/) { skip = 1; continue }
        if (skip) { # macros over functions with options: the names are those of the functions
            if (skip == 1 && line ~ /^#define dt_/) macro[name_of(line)] = line
            if (line ~ /^#else/) skip = 2
            if (line ~ /^#endif/) skip = 0
            continue
        }
        if (line ~ /^#(if|else|endif|undef|include|error)/) continue
        if (!incomment && line ~ /^ *\/\*/) { incomment = 1; hold = "" }
        if (incomment) {
            c = line
            if (!sub(/^ *\/\* ?/, "", c)) sub(/^   /, "", c)
            if (c ~ /\*\//) { incomment = 0; sub(/ *\*\/.*/, "", c) }
            if (c !~ /^-+ >>/) hold = hold "\002" c
            if (!incomment) {
                plain = hold
                gsub("\002", " ", plain)
                if (plain !~ /^ *$/) seen = plain
                text = text plain "\n"
                code = code "\001" hold "\n"
            }
            continue
        }
        code = code line "\n"
        plain = line
        name = name_of(plain)
        if (line ~ /^} dt_/ && n && names[n] == name) name = ""
        if (name == "") { # the rest of a declaration may have the comment of its first line
            if (n && line ~ /\/\*/ && (got_open || line ~ /^ /)) { own = line; sub(/^[^\/]*\/\* ?/, "", own); sub(/ ?\*\/.*/, "", own); got[n] = got[n] != "" ? got[n] : own }
            if (line ~ /;/) got_open = 0
            continue
        }
        own = ""
        if (line ~ /\/\*/) { own = line; sub(/^[^*]*\/\* ?/, "", own); sub(/ ?\*\/.*/, "", own) }
        n++
        names[n] = name
        got[n] = own != "" ? own : seen
        got_open = line !~ /;/
    }
    # a structure has its name at its end, or at its begin and its end
    for (i = 1; i <= n; i++) {
        name = names[i]
        if (name in done_here) continue
        done_here[name] = 1
        plain = name
        sub(/_with$/, "", plain)
        if (name ~ /_INCLUDED$|_IMPLEMENTATION$|^DT__/) continue
        if (got[i] == "" && name !~ /_opts$/) { missing[++nmissing] = file ": " name }
        index_name[++nindex] = plain
        index_file[nindex] = file
        index_text[nindex] = sentence(got[i])
        anchors = anchors "<a id=\"" plain "\"></a>"
        delete names[i]
    }
    if (n == 0 && text != "") pending = text; else pending = ""
    if (out != "" && (code != "")) {
        body = body anchors
        c = split(code, part, "\n")
        plain = ""
        for (i = 1; i <= c; i++) {
            if (substr(part[i], 1, 1) == "\001") {
                if (plain != "") body = body "<pre>" html(plain) "</pre>\n"
                plain = ""
                body = body prose(substr(part[i], 2))
            } else if (part[i] != "" && part[i] !~ /dt__first/) plain = plain signature(part[i]) "\n"
        }
        if (plain != "") body = body "<pre>" html(plain) "</pre>\n"
    }
    anchors = ""
    nlines = 0
}
function finish() {
    flush_paragraph()
    if (file == "" || out == "") return
    page = out "/" file ".html"
    print head(file) "<p><a href=\"index.html\">dt " version "</a></p><h1>" file "</h1><p>" html(about) "</p>\n" toc "\n" body > page
    close(page)
}
FNR == 1 {
    finish()
    file = FILENAME
    about = $0
    sub(/^[^-]*- v[0-9.]* - /, "", about)
    sub(/ *\*\/ *$/, "", about)
    files[++nfiles] = file
    abouts[nfiles] = about
    body = toc = pending = ""
    on = open = nlines = 0
    split("", done_here)
}
/^\/\* -----+ >>/ && !over[file] {
    flush_paragraph()
    on = 1
    section = $0
    sub(/^[^>]*>>/, "", section)
    sub(/[^a-z0-9_].*/, "", section)
    body = body "<h2 id=\"s-" section "\">" section "</h2>\n"
    toc = toc " <a href=\"#s-" section "\">" section "</a>"
    pending = ""
}
/^#endif \/\* DT_[A-Z_]*_H_INCLUDED/ || /^#ifdef __cplusplus/ && on { flush_paragraph(); if (/^#endif/) over[file] = 1; on = 0 }
on && /^ *$/ && !open { flush_paragraph(); next }
on {
    lines[++nlines] = $0
    if (match($0, /\/\*/) && substr($0, RSTART) !~ /\*\//) open = 1
    else if (/\*\//) open = 0
}
END {
    finish()
    if (out == "") {
        for (i = 1; i <= nmissing; i++) print missing[i]
        exit nmissing > 0
    }
    page = out "/index.html"
    print head("dt " version) "<h1>dt " version "</h1><p><input id=q placeholder=\"search " nindex " names\" autofocus aria-label=search></p><table>" > page
    for (i = 1; i <= nfiles; i++) print "<tr class=f><td><a href=\"" files[i] ".html\">" files[i] "</a><td>" html(abouts[i]) > page
    print "</table><h2>Names</h2><table id=t>" > page
    for (i = 1; i <= nindex; i++)
        print "<tr><td><a href=\"" index_file[i] ".html#" index_name[i] "\">" index_name[i] "</a><td class=c>" html(index_text[i]) > page
    print "</table><script>var q=document.getElementById(\"q\"),r=document.getElementById(\"t\").rows;" \
        "q.oninput=function(){var w=q.value.toLowerCase().split(/ +/);for(var i=0;i<r.length;i++){var s=r[i].textContent.toLowerCase();" \
        "r[i].hidden=!w.every(function(x){return s.indexOf(x)>=0})}};if(location.hash.length>1){q.value=decodeURIComponent(location.hash.slice(1));q.oninput()}</script>" > page
}' $first $(for h in dt_*.h; do case " $first " in *" $h "*) ;; *) echo "$h" ;; esac; done) || exit 1
[ -z "$out" ] || echo "api.sh: $out/index.html"
