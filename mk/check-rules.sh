#!/bin/sh
# usage: check-rules.sh PROGRAM BACKENDS | check-rules.sh none
# Compares the rules of lib/ops/meta.def with what the torch backend executes; `none`: LibTorch was not found.
set -u
if [ "$1" = none ]; then
    echo "rules: LibTorch was not found (make deps), so there is nothing to compare with"
    echo "rules: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec "$1" "$2"
