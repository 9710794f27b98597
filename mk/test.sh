#!/bin/sh
# usage: test.sh
# Everything that must pass before a merge: `make test`. Stages run in two lanes, so that what waits for time leaves
# the cores to what computes. Each stage's output goes to build/test/STAGE.log and is shown when it fails.
# A tier's line is "NAME: N passed, N failed[, N skipped]"; a check without such a line counts as one. The last line
# adds all of them up.
set -u
make=${MAKE:-make}
log=build/test
jobs=${JOBS:-$(nproc)}
rm -rf "$log"
mkdir -p "$log"
start=$(date +%s)

summary() { # STAGE: its tier lines, or none
    grep -E '^[a-z][a-z0-9 -]*: [0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log/$1.log"
}

stage() { # STAGE TARGET ARGUMENTS...: run make, count, say how it went
    name=$1
    shift
    began=$(date +%s)
    rc=0
    "$make" --no-print-directory "$@" >"$log/$name.log" 2>&1 </dev/null || rc=$?
    lines=$(summary "$name")
    bad=$(echo "$lines" | sed -n 's/.* \([0-9]*\) failed.*/\1/p' | awk '{ n += $1 } END { print n + 0 }')
    if [ -z "$lines" ]; then
        lines="$name: $([ $rc -eq 0 ] && echo '1 passed, 0 failed' || echo '0 passed, 1 failed')"
    elif [ $rc -ne 0 ] && [ "$bad" -eq 0 ]; then
        lines=$(printf '%s\n%s: 0 passed, 1 failed' "$lines" "$name")
    fi
    {
        [ $rc -eq 0 ] || { echo "---- make $*"; tail -n 200 "$log/$name.log" | grep -v '^  [A-Z]* *[a-z]'; echo "----"; }
        echo "$lines" | sed "s/^[a-z][a-z0-9 -]*:/$name:/; s/\$/ ($(($(date +%s) - began)) s)/"
    } >"$log/$name.said"
    echo "$lines" >"$log/$name.count"
    cat "$log/$name.said"
}

lane_build() { # everything that compiles: both cores
    stage deps deps
    stage config config
    touch "$log/ready.deps"
    stage format check-format
    stage layers check-layers
    stage functions check-functions
    stage docs check-docs
    stage gcc -j"$jobs" all tests check-headers
    stage names check-names
    touch "$log/ready.gcc"
    stage release -j"$jobs" all man build/release/tests/gpu/group PRESET=release
    touch "$log/ready.release"
    stage asan-build -j"$jobs" all tests PRESET=asan
    touch "$log/ready.asan"
    stage tsan-build -j"$jobs" all tests-race PRESET=tsan
    touch "$log/ready.tsan"
    stage clang -j"$jobs" check-clang
    stage man check-man PRESET=release
    stage tidy -j"$jobs" check-tidy
    stage asan-unit check-unit PRESET=asan
    stage asan-sim check-sim PRESET=asan SEEDS=50
    stage asan-corpus check-corpus PRESET=asan
    stage race check-race PRESET=tsan
    stage gpu check-gpu
    stage fuzz -j"$jobs" check-fuzz
    stage selftest check-selftest
}

await() { # MARK: set by the other lane
    until [ -e "$log/ready.$1" ] || [ -e "$log/over" ]; do sleep 0.2; done
}

lane_daemons() { # what mostly waits: daemons, kills, deadlines
    await deps
    stage systemd-root systemd-root
    await gcc
    stage unit check-unit
    stage conformance check-conformance
    stage rules check-rules
    stage meta check-meta
    stage torch check-torch
    stage programs check-programs SEEDS=40
    stage device check-device
    stage newcomer check-newcomer
    stage demo check-demo
    stage tutorial check-tutorial
    stage corpus check-corpus
    stage sim check-sim SEEDS=500
    stage component check-component
    stage page check-page
    stage fault check-fault
    await release
    stage install check-install PRESET=release
    stage gpu-bundle check-gpu-bundle PRESET=release
    stage units check-units PRESET=release
    await asan
    stage asan-component check-component PRESET=asan
    await tsan
    stage tsan-component check-component PRESET=tsan
}

lane_daemons &
daemons=$!
lane_build
touch "$log/over"
wait $daemons
passed=$(sed -n 's/.*: \([0-9]*\) passed.*/\1/p' "$log"/*.count | awk '{ n += $1 } END { print n + 0 }')
failed=$(sed -n 's/.* \([0-9]*\) failed.*/\1/p' "$log"/*.count | awk '{ n += $1 } END { print n + 0 }')
skipped=$(sed -n 's/.* \([0-9]*\) skipped.*/\1/p' "$log"/*.count | awk '{ n += $1 } END { print n + 0 }')
echo "took $(($(date +%s) - start)) s; the output of each stage is in $log"
echo "$passed passed, $failed failed$([ "$skipped" -eq 0 ] || echo ", $skipped skipped")"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
