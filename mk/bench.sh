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
# shellcheck disable=SC2046  # a list of keys
{ "$build/tests/bench/figures" "$PWD/$build/tests/bench/load" $(echo "$2" | tr ',' ' ') || touch build/bench.failed; } | tee build/bench.jsonl
[ ! -e build/bench.failed ]
