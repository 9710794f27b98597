#!/bin/sh
# usage: check-meta.sh PROGRAM BACKENDS | check-meta.sh none
# Compares the rules of lib/ops/meta.def with what the torch backend executes; `none`: LibTorch was not found.
set -u
if [ "$1" = none ]; then
    echo "meta: LibTorch was not found (make deps), so there is nothing to compare with"
    echo "meta: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
exec "$1" "$2"
