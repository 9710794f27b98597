#!/bin/sh
# usage: run-fuzz.sh SECONDS PROGRAM...
# Runs libFuzzer programs, two at a time and the last three together, each for SECONDS, from the committed corpus. What is
# found new stays in build/fuzz/corpus/X, a crash goes to tests/fuzz/corpus/X: commit it with its fix, every build replays
# it from then on.
# Closes with "fuzz: N passed, N failed".
set -u
seconds=$1
shift
logs=build/fuzz/logs
rm -rf "$logs"
mkdir -p "$logs"

one() { # PROGRAM
    name=$(basename "$1" _fuzz)
    mkdir -p "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name"
    if "$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="tests/fuzz/corpus/$name/" \
        "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$logs/$name.log" 2>&1; then
        echo "$name" >>"$logs/passed"
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$name.log")
        echo "fuzz $name: ${runs:-0} inputs in $seconds s"
    else
        echo "FAILED fuzz $name:"
        tail -n 30 "$logs/$name.log"
    fi
}

while [ $# -gt 0 ]; do
    one "$1" &
    first=$!
    if [ $# -eq 3 ]; then # an odd one takes no minute of its own
        one "$2" &
        second=$!
        one "$3" &
        third=$!
        count=$((${count:-0} + 3))
        shift 3
        wait $first $second $third
    elif [ $# -gt 1 ]; then
        one "$2" &
        second=$!
        count=$((${count:-0} + 2))
        shift 2
        wait $first $second
    else
        count=$((${count:-0} + 1))
        shift
        wait $first
    fi
done
passed=$(cat "$logs/passed" 2>/dev/null | wc -l)
echo "fuzz: $passed passed, $((${count:-0} - passed)) failed"
[ "${count:-0}" -gt 0 ] && [ "$passed" -eq "$count" ]
