#!/bin/sh
# usage: check-man.sh BUILD PAGE...
# Pages are clean under mandoc -Tlint, and name every flag that their program's --help names.
set -u
build=$1
shift
passed=0 failed=0
for page in "$@"; do
    said=$(mandoc -Tlint -W warning "$page" 2>&1)
    if [ -z "$said" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $page:"
        echo "$said" | head -n 20
    fi
done
for program in "$build"/bin/*; do
    name=$(basename "$program")
    page=$(ls "$build/man/$name".* 2>/dev/null | head -n 1)
    text=$(mandoc -Tascii "$page" 2>/dev/null | col -b)
    missing=
    for flag in $("$program" --help 2>/dev/null | grep -oE '(^|[ ,])--[a-z][a-z-]*' | tr -d ' ,' | sort -u); do
        echo "$text" | grep -qE -e "$flag([^a-z-]|\$)" || missing="$missing $flag"
    done
    if [ -n "$page" ] && "$program" --help >/dev/null 2>&1 && [ -z "$missing" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name: --help fails, or the page ${page:-(none)} does not name:${missing:- (nothing missing)}"
    fi
done
echo "man: $passed passed, $failed failed"
[ $failed -eq 0 ]
