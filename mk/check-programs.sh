#!/bin/sh
# usage: check-programs.sh BUILD torch|none FIRST COUNT
# Random programs on the torch and on the ref backend, through all processes, beside the PyTorch of build/venv.
set -u
python=build/venv/bin/python
if [ "$2" = none ] || ! [ -x $python ]; then
    echo "programs: LibTorch or $python was not found (make deps), so there is nothing to compare with"
    echo "programs: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
rc=0
passed=0
failed=0
for backend in torch ref; do
    out=$($python tests/python/programs.py "$1" $backend --seed="$3" --count="$4") || rc=1
    echo "$out" | grep -v '^programs: '
    line=$(echo "$out" | grep '^programs: ')
    passed=$((passed + $(echo "${line:-0 passed}" | sed 's/.*[ :]\([0-9]*\) passed.*/\1/')))
    failed=$((failed + $(echo "${line:-1 failed}" | sed 's/.*[ ,]\([0-9]*\) failed.*/\1/;s/^1 failed$/1/')))
done
echo "programs: $passed passed, $failed failed"
[ $rc -eq 0 ] && [ $failed -eq 0 ]
