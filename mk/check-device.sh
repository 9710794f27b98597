#!/bin/sh
# usage: check-device.sh BUILD SECONDS [--whole | --mesh | --mesh-programs | --mesh-llama]
# The PyTorch device of the Python package against PyTorch's CPU, by the programs tests/python/device_*.py. SECONDS bounds
# how long each of those that go through a database of PyTorch's may take; --whole: they go through all of it;
# --mesh: the one of operators, on meshes. --mesh-programs: 2,000 random programs on meshes. --mesh-llama: a language model with
# its weights under every configuration.
# Ends with "device: N passed, N failed, N skipped".
set -u
build=$1 seconds=$2 whole=${3:-}
python=$PWD/build/venv/bin/python
if ! [ -e "$build/lib/libdtorch_torch.so" ] || ! [ -x "$python" ]; then
    echo "device: LibTorch or $python was not found (make deps), so there is no PyTorch device to test"
    echo "device: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
"$python" client/python/build_dtorch.py tree build/python "$build" || exit 1
results=$build/results/device
rm -rf "$results"
mkdir -p "$results"
PYTHONPATH=$PWD/build/python:$PWD/tests/python
# Nothing of the machine's own configuration: a private cluster for each program, unless it makes one.
unset DTORCH_ADDRESS DTORCH_BIN
OMP_NUM_THREADS=1
PYTHONFAULTHANDLER=1
export PYTHONPATH OMP_NUM_THREADS PYTHONFAULTHANDLER

run() { # NAME INTERPRETER ARGUMENTS...: its output is shown but for the last line, which is kept
    name=$1
    shift
    echo "--- $name"
    { "$@" 2>&1; echo "ended with $?"; } | tee "$results/$name" | grep -v -e '^device [a-z0-9 ]*: [0-9]* passed, [0-9]* failed, ' \
        -e '^ended with 0'
}

if [ "$whole" = --mesh ]; then
    run opdbmesh "$python" tests/python/device_opdb_mesh.py --whole
elif [ "$whole" = --mesh-programs ]; then
    run randommesh "$python" tests/python/device_random_mesh.py --count=2000
elif [ "$whole" = --mesh-llama ]; then
    run llamamesh "$python" tests/python/device_llama_mesh.py --smol
elif [ -n "$whole" ]; then
    run opdb "$python" tests/python/device_opdb.py --whole
    run random "$python" tests/python/device_random.py --count=3000
    run nn "$python" tests/python/device_nn.py
    run models "$python" tests/python/device_models.py --whole
    run examples "$python" tests/python/device_examples.py --whole
else
    run traps "$python" tests/python/device_traps.py
    run values "$python" tests/python/device_values.py
    run mesh "$python" tests/python/device_mesh.py
    run context "$python" tests/python/device_context.py
    run meshnodes "$python" tests/python/device_mesh_nodes.py
    run randommesh "$python" tests/python/device_random_mesh.py --count=100
    run llamamesh "$python" tests/python/device_llama_mesh.py
    run opdbmesh "$python" tests/python/device_opdb_mesh.py --samples=1 --seconds=30
    run process "$python" tests/python/device_process.py
    run linear "$python" tests/python/device_linear.py
    run together "$python" tests/python/device_together.py
    run diffusion "$python" tests/python/device_diffusion.py
    run pipeline "$python" tests/python/device_pipeline.py
    run explain "$python" tests/python/device_explain.py
    run train "$python" tests/python/device_train.py
    run examples "$python" tests/python/device_examples.py
    run models "$python" tests/python/device_models.py
    run random "$python" tests/python/device_random.py --count=60
    run nn "$python" tests/python/device_nn.py "--seconds=$seconds"
    run opdb "$python" tests/python/device_opdb.py --samples=1 "--seconds=$seconds"
fi
sed -n 's/^device \([a-z0-9 ]*\): \([0-9]* passed, [0-9]* failed, [0-9]* skipped\)$/  \1: \2/p' "$results"/*
# A program that ended without its line counts as a failure.
awk '/^device [a-z0-9 ]*: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ {
         split($0, half, ": "); split(half[2], n, " "); passed += n[1]; failed += n[3]; skipped += n[5]; said++ }
     /^ended with / { ran++ }
     END { if (said < ran) failed += ran - said
           printf "device: %d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || passed == 0 }' "$results"/*
