#!/bin/sh
# usage: check-tutorial.sh BUILD
# What the documents tell, tried by tests/docs/check.py with the daemons of BUILD.
# Ends with "tutorial: N passed, N failed, N skipped".
set -u
build=$1
python=$PWD/build/venv/bin/python
if ! [ -e "$build/lib/libdtorch_torch.so" ] || ! [ -x "$python" ]; then
    echo "tutorial: LibTorch or $python was not found (make deps), so there is no program to run"
    echo "tutorial: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
"$python" client/python/build_dtorch.py tree build/python "$build" || exit 1
PYTHONPATH=$PWD/build/python OMP_NUM_THREADS=1 exec "$python" tests/docs/check.py "$build"
