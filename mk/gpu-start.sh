#!/bin/sh
# usage: start [COMMAND...]
# Runs a command with this build on its paths (PYTHON= names the Python that has torch; else python3). Without a command: looks
# at the machine, and tries what is here: "gpu-bundle: N passed, N failed". Needs no internet and writes only below itself.
set -u
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
wanted=$(cat "$here/torch-version")
torch=$("$python" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null) || {
    echo "start: $python has no torch; PYTHON= names one that has $wanted" >&2
    exit 1
}
found=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$torch/version.py")
if [ "$found" != "$wanted" ]; then
    echo "start: built for torch $wanted, $python has $found" >&2
    exit 1
fi
glibc=$(getconf GNU_LIBC_VERSION | sed 's/.* //')
if [ "$(printf '%s\n%s\n' "$(cat "$here/glibc-version")" "$glibc" | sort -V | tail -n 1)" != "$glibc" ]; then
    echo "start: needs glibc $(cat "$here/glibc-version"), here is $glibc" >&2
    exit 1
fi
nvidia=$(dirname "$torch")/nvidia
paths=$here/deps:$here/python/dtorch/lib:$torch/lib
for folder in "$nvidia/nccl/lib" "$nvidia/cu13/lib"; do [ -d "$folder" ] && paths=$paths:$folder; done
ldconfig=$(command -v ldconfig || echo /sbin/ldconfig)
"$ldconfig" -p 2>/dev/null | grep -q 'libssl\.so\.3 ' || paths=$paths:$here/spare
export LD_LIBRARY_PATH="$paths${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$here/python:$here/tests/python${PYTHONPATH:+:$PYTHONPATH}"
export DTORCH_BIN="$here/python/dtorch/bin"
export PATH="$DTORCH_BIN:$PATH"
[ $# -gt 0 ] && exec "$@"

passed=0 failed=0
try() { # WHAT COMMAND...
    what=$1
    shift
    if "$@" >"$here/last.log" 2>&1; then
        passed=$((passed + 1))
        echo "ok $what"
    else
        failed=$((failed + 1))
        echo "FAILED $what"
        tail -n 20 "$here/last.log"
    fi
}
echo "torch $found of $torch, glibc $glibc"
if command -v nvidia-smi >/dev/null; then nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; else echo "no NVIDIA driver here: CPU only"; fi
try 'the daemons start' dtorchctl --version
try 'a C program on a private cluster' timeout 600 "$here/tests/matmul"
try 'a Python program on a private cluster' timeout 600 "$python" -c 'import torch; x = torch.ones(3, device="dtorch") * 2; assert x.tolist() == [2.0, 2.0, 2.0]'
try 'groups of devices, where there are any' timeout 600 "$here/tests/group" "" ""
tail -n 2 "$here/last.log"
echo "gpu-bundle: $passed passed, $failed failed"
[ $failed -eq 0 ]
