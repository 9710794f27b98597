#!/bin/sh
# usage: bench.sh BUILD KEY,KEY
# Prints one JSON line a figure and writes the same to build/bench.jsonl. No key: all.
set -u
build=$1
DT_TEST_BIN=$PWD/$build/bin
TMPDIR=$(mktemp -d /tmp/dtb.XXXXXX)
export DT_TEST_BIN TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
rm -f build/bench.jsonl build/bench.failed
keys=$(echo "$2" | tr ',' ' ')
{
    # shellcheck disable=SC2086
    "$build/tests/bench/figures" "$PWD/$build/tests/bench/load" $keys
    control=$?
    # shellcheck disable=SC2086
    "$build/tests/bench/stream" $keys
    stream=$?
    # shellcheck disable=SC2086
    "$build/tests/bench/fair" $keys
    fair=$?
    # 3: none of the keys is one of its own
    case $control$stream$fair in *[!03]* | 333) touch build/bench.failed ;; esac
} | tee build/bench.jsonl
[ ! -e build/bench.failed ]
