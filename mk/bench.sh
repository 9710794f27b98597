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
    # shellcheck disable=SC2086
    "$build/tests/bench/collective" $keys
    collective=$?
    # shellcheck disable=SC2086
    "$build/tests/bench/shard" $keys
    shard=$?
    # shellcheck disable=SC2086
    "$build/tests/bench/mesh" $keys
    mesh=$?
    # shellcheck disable=SC2086
    "$build/tests/bench/overlap" $keys
    overlap=$?
    # The PyTorch device, where it is built; its own configuration, so that no cluster of this machine is measured.
    device=3
    spread=3
    context=3
    stages=3
    if [ -e "$build/lib/libdtorch_torch.so" ] && [ -x build/venv/bin/python ]; then
        build/venv/bin/python client/python/build_dtorch.py tree build/python "$build"
        # shellcheck disable=SC2086
        env -u DTORCH_ADDRESS -u DTORCH_BIN PYTHONPATH="$PWD/build/python" build/venv/bin/python tests/bench/device.py $keys
        device=$?
        # shellcheck disable=SC2086
        env -u DTORCH_ADDRESS -u DTORCH_BIN OMP_NUM_THREADS=1 PYTHONPATH="$PWD/build/python" build/venv/bin/python tests/bench/mesh.py $keys
        spread=$?
        # shellcheck disable=SC2086
        env -u DTORCH_ADDRESS -u DTORCH_BIN OMP_NUM_THREADS=1 PYTHONPATH="$PWD/build/python:$PWD/tests/python" \
            build/venv/bin/python tests/bench/context.py $keys
        context=$?
        # shellcheck disable=SC2086
        env -u DTORCH_ADDRESS -u DTORCH_BIN OMP_NUM_THREADS=1 PYTHONPATH="$PWD/build/python:$PWD/tests/python" \
            build/venv/bin/python tests/bench/pipeline.py $keys
        stages=$?
    fi
    # 3: none of the keys is one of its own
    case $control$stream$fair$collective$shard$mesh$overlap$device$spread$context$stages in *[!03]* | 33333333333) touch build/bench.failed ;; esac
} | tee build/bench.jsonl
[ ! -e build/bench.failed ]
