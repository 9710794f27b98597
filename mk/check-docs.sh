#!/bin/sh
# usage: check-docs.sh
# Every relative link of a document leads to a file, ARCHITECTURE.md names every folder and no file that is not there, and decision records are
# numbered without a gap. Closes with "docs: N passed, N failed".
set -u
passed=0 failed=0
fail() {
    failed=$((failed + 1))
    echo "FAILED $*"
}
[ -e README.md ] || fail 'README.md is not there'
for doc in $(find . -name build -prune -o -name .git -prune -o -name '*.md' -print | sed 's|^\./||' | sort); do
    dead=
    for link in $(grep -oE '\]\([^)# ]+' "$doc" | sed 's/^](//' | grep -vE '^[a-z]+:'); do
        [ -e "$(dirname "$doc")/$link" ] || dead="$dead $link"
    done
    if [ -z "$dead" ]; then passed=$((passed + 1)); else fail "$doc links to what is not there:$dead"; fi
done
for dir in lib/*/ daemons/*/ client/*/ tests/*/ docs/*/ proto/ config/ deploy/ man/ mk/ docs/; do
    [ -d "$dir" ] || continue
    if grep -qE "(^|[^a-z/])${dir%/}([^a-z]|\$)" docs/ARCHITECTURE.md 2>/dev/null; then
        passed=$((passed + 1))
    else
        fail "docs/ARCHITECTURE.md does not name $dir"
    fi
done
# A file is named by its path, or by its name alone where a path of its folder went before.
for file in $(grep -oE '`[a-z][A-Za-z0-9_/.-]*\.(c|h|cpp|py|sh|mk|def|proto|in)`' docs/ARCHITECTURE.md | tr -d '`' | sort -u); do
    case $file in
    */*) [ -e "$file" ] || [ -e "lib/$file" ] ;;
    *) find lib daemons client proto mk tests -name "$file" -print -quit | grep -q . ;;
    esac && passed=$((passed + 1)) || fail "docs/ARCHITECTURE.md names $file, which is not there"
done
number=0
for record in docs/decisions/[0-9]*.md; do
    number=$((number + 1))
    case $(basename "$record") in
    "$(printf %04d $number)"-*.md) passed=$((passed + 1)) ;;
    *) fail "$record: number $number is missing" ;;
    esac
done
echo "docs: $passed passed, $failed failed"
[ $failed -eq 0 ]
