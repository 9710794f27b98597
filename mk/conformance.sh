#!/bin/sh
# usage: conformance.sh PROGRAM BACKENDS NAME... | conformance.sh none NAME...
# Runs conformance for each backend; `none`: LibTorch was not found when make looked.
set -u
program=$1
shift
if [ "$program" = none ]; then
    echo "conformance: LibTorch was not found (make deps), so there is nothing to compare with"
    echo "conformance: 0 passed, 0 failed, $# skipped"
    exit 0
fi
dir=$1 bad=0
shift
for name; do
    "$program" "$dir" "$name" || bad=1
done
exit $bad
