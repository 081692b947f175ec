#!/bin/bash
# report.sh - opens reports of DT_REPORT in a real browser: no script error, every plot there, no horizontal scrolling on a
# phone, light and dark
#
#     tests/report.sh            run by make test-all; DT_SHOTS=DIR keeps pictures of the pages
# One line a check: ok, FAIL or skip; ends with "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dt_report.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0 skipped=0
check() { # what, status of a test, what was found
    if [ "$2" = 0 ]; then
        echo "ok   $1"
        passed=$((passed + 1))
    else
        echo "FAIL $1: $3"
        failed=$((failed + 1))
    fi
}
done_() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ]
    exit
}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -z "$browser" ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    timeout 300 apt-get install -y -qq chromium > /dev/null 2>&1 ||
        { timeout 120 apt-get update -qq > /dev/null 2>&1 && timeout 300 apt-get install -y -qq chromium > /dev/null 2>&1; }
    browser=$(command -v chromium)
fi
if [ -z "$browser" ]; then
    echo "skip report: no chromium, and it cannot be installed here"
    skipped=1
    done_
fi

# ---- the pages: a job of two ranks, one that was interrupted, one without a step, and these compared
train() { timeout -k 5 120 build/demo/mnist --data data/digits --batch 50 "$@" > "$tmp/log" 2>&1; }
DT_REPORT=$tmp/two.html train --nproc 2 --epochs 3
DT_REPORT=$tmp/one.json train --epochs 1 --opt-level O2
DT_REPORT=$tmp/none.json train --epochs 0
DT_REPORT=$tmp/cut.html train --epochs 100000 &
pid=$!
for ((i = 0; i < 600; i++)); do grep -qs '"step":[1-9]' "$tmp/cut.html" && break; sleep 0.1; done
kill -INT $pid $(pgrep -P $pid) 2> /dev/null
wait $pid 2> /dev/null
grep -q '"state":"interrupted"' "$tmp/cut.html"
check "an interrupted run left its report" $? "$(tail -n 3 "$tmp/log")"
build/tools/dtreport "two=$tmp/two.html" "<i>one</i> & \"it\"=$tmp/one.json" "$tmp/none.json" "$tmp/cut.html" -o "$tmp/compare.html"
check "dtreport made a page" $? "see above"
build/tools/dtreport "$tmp/none.json" -o "$tmp/none.html"
# as dt_ps would say it, and losses that are not finite
sed 's/"machine":/"dropped":3,"staleness":[90,12,5,0,1,0,0,0,0,0,0,0,0,0,0,2],"machine":/; s/"mean":\[[^]]*\]/"mean":[null,null,1e9,-3]/' \
    "$tmp/one.json" > "$tmp/odd.json"
build/tools/dtreport "$tmp/odd.json" -o "$tmp/odd.html"

# ---- what the browser says: the page is in a frame as wide as a phone, because windows have a least width. A script before all
# others counts errors, one behind them measures and tells the page around it.
open_page() { # page, width, scheme (0 dark, 1 light); what was measured goes to $answer
    { sed 's|<head>|<head><script>window.errors = 0; window.onerror = function () { window.errors++; };</script>|' "$1"
      cat << 'EOF'
<script>
(function () {
  const d = document.documentElement, q = function (s) { return document.querySelectorAll(s).length; };
  document.querySelectorAll('details').forEach(function (x) { x.open = true; });
  window.dispatchEvent(new Event('resize'));
  const odd = Array.from(document.querySelectorAll('svg *')).some(function (e) {
    return Array.from(e.attributes).some(function (a) { return /NaN|Infinity|undefined/.test(a.value); });
  });
  parent.postMessage(['errors=' + window.errors, 'drawn=' + d.dataset.drawn, 'wide=' + (d.scrollWidth - d.clientWidth),
    'svg=' + q('svg'), 'path=' + q('svg path'), 'rect=' + q('svg rect'), 'odd=' + odd,
    'markup=' + q('td i'), 'back=' + getComputedStyle(document.body).backgroundColor, 'width=' + innerWidth].join(' '), '*');
})();
</script>
EOF
    } > "$tmp/page.html"
    cat > "$tmp/frame.html" << EOF
<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<script>addEventListener('message', function (e) { document.documentElement.setAttribute('answer', e.data); });</script>
<iframe src="page.html" style="width:$2px;height:900px;border:0"></iframe>
EOF
    local options="--headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir=$tmp/profile
        --blink-settings=preferredColorScheme=$3 --window-size=1300,900"
    # shellcheck disable=SC2086
    answer=$(timeout 60 "$browser" $options --virtual-time-budget=3000 --dump-dom "file://$tmp/frame.html" 2> "$tmp/browser.log" |
        grep -o 'answer="[^"]*"' | head -n 1)
    # shellcheck disable=SC2086
    [ -z "$DT_SHOTS" ] || { mkdir -p "$DT_SHOTS" && timeout 60 "$browser" ${options/1300,900/$2,3400} \
        --screenshot="$DT_SHOTS/$(basename "$1" .html)-$2-$3.png" "file://$1" > /dev/null 2>&1; }
}
field() { sed -n "s/.*[\" ]$1=\([^ \"]*\).*/\1/p" <<< "$answer"; }
for page in two compare cut none odd; do
    light='' dark=''
    for scheme in 1 0; do
        for width in 390 1200; do
            open_page "$tmp/$page.html" $width $scheme
            name="$page, $width pixels, $([ $scheme = 1 ] && echo light || echo dark)"
            [ "$(field errors)" = 0 ] && [ "$(field drawn)" = yes ] && [ "$(field odd)" = false ] && [ "$(field width)" = $width ]
            check "$name: no script error" $? "$answer"
            [ "$(field wide)" = 0 ] && [ "$(field markup)" = 0 ]
            check "$name: no horizontal scrolling, names are no markup" $? "$answer"
            [ "$(field svg)" -ge 2 ] && { [ $page = none ] || [ "$(field path)" -ge 2 ]; }
            check "$name: plots are there" $? "$answer"
            [ $scheme = 1 ] && light=$(field back) || dark=$(field back)
        done
    done
    [ -n "$light" ] && [ -n "$dark" ] && [ "$light" != "$dark" ]
    check "$page: dark differs from light" $? "$light and $dark"
done
done_
