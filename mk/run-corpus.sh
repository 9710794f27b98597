#!/bin/sh
# usage: run-corpus.sh PROGRAM...
# Feeds each committed input of tests/fuzz/corpus/X to X_fuzz, built without libFuzzer. One input is one test.
# Closes with "corpus: N passed, N failed".
set -u
passed=0 failed=0
for program in "$@"; do
    name=$(basename "$program" _fuzz)
    if ! ls "tests/fuzz/corpus/$name"/* >/dev/null 2>&1; then
        echo "FAILED tests/fuzz/corpus/$name: holds no input"
        failed=$((failed + 1))
        continue
    fi
    if timeout 120 "$program" "tests/fuzz/corpus/$name"/*; then
        passed=$((passed + $(ls "tests/fuzz/corpus/$name" | wc -l)))
        continue
    fi
    for input in "tests/fuzz/corpus/$name"/*; do
        if timeout 20 "$program" "$input"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "FAILED $program $input"
        fi
    done
done
echo "corpus: $passed passed, $failed failed"
[ $failed -eq 0 ]
