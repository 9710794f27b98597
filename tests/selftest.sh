#!/bin/sh
# usage: selftest.sh
# A check that never fails proves nothing. Plants one fault at a time in a copy of the tree and expects the target to
# fail with the right words; then takes the fault out again and expects the copy to pass.
set -u
top=$(pwd)
base=$top/build/selftest
tree=$base/tree
passed=0 failed=0
unit=build/dev/tests/unit
rm -rf "$base"
mkdir -p "$tree"

copy() { # the sources, and what is built already, so that a fault costs one compile and not all
    tar -c --exclude=./build --exclude=./.git . | tar -x -C "$tree"
    mkdir -p "$tree/build"
    for preset in dev asan tsan; do
        [ -d "build/$preset" ] || continue
        tar -c --exclude='*/results' "build/$preset" | tar -x -C "$tree"
    done
}

mend() { # FILE...: as it was, and newer than what was built from the fault
    for file in "$@"; do
        case $file in
        *.h) cp -p "$top/$file" "$tree/$file" ;; # nothing was built from it, so nothing has to be built again
        *) if [ -e "$top/$file" ]; then cp "$top/$file" "$tree/$file"; else rm -rf "${tree:?}/$file"; fi ;;
        esac
    done
}

expect() { # NAME WORDS "FILES" MAKE-ARGUMENTS...: make must fail and say WORDS; FILES are put right afterwards
    name=$1 words=$2 files=$3
    shift 3
    if make --no-print-directory -C "$tree" "$@" >"$base/out" 2>&1; then
        echo "FAILED $name: make $* passed"
        failed=$((failed + 1))
    elif ! grep -qE -- "$words" "$base/out"; then
        echo "FAILED $name: make $* failed, but did not say '$words':"
        tail -n 12 "$base/out"
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
    # shellcheck disable=SC2086  # a list of files
    mend $files
}

lines() { # N: a function of exactly N lines
    printf 'void dt_long_run(void);\nvoid dt_long_run(void)\n{\n'
    i=3
    while [ $i -lt "$1" ]; do
        echo '    (void)0;'
        i=$((i + 1))
    done
    echo '}'
}

list_test() { # TEXT: one more test in list_test.c
    printf '#include <stdlib.h>\n%s\n' "$1" >>tests/unit/list_test.c
}
one_unit="check-unit UNIT_BIN=$unit/list_test"

copy
cd "$tree" || exit 1
count=$(grep -c '^Test(' tests/unit/list_test.c)

# The sources.
echo '#include "loop/mailbox.h"' >>lib/base/status.c
expect 'an include that points up' 'may include only: base' lib/base/status.c check-layers
mkdir lib/extra; echo 'typedef int dt_extra_t;' >lib/extra/extra.h
expect 'a folder without a layer' 'lib/extra has no line' lib/extra check-layers
echo '#include <uv.h>' >>lib/base/status.c
expect 'a foreign library outside its folder' 'only lib/loop includes' lib/base/status.c check-layers
echo '#include "core/cluster.h"' >>client/ctl/main.c
expect 'a client with a state machine' 'client/ctl/main.c may include' client/ctl/main.c check-layers
sed -i '/#include <stddef.h>/d' lib/base/list.h
expect 'a header that needs another first' 'NULL.*undeclared|undeclared.*NULL' lib/base/list.h check-headers
lines 71 >>lib/base/status.c
expect 'a function of 71 lines' 'dt_long_run has 71 lines, limit 70' lib/base/status.c check-functions
printf 'int foreign_name;\n' >>lib/base/status.c
expect 'a symbol without dt_' 'must begin with dt_' lib/base/status.c check-names
echo '#define DT_LIMIT 1' >>lib/base/status.h
expect 'a one-part macro' 'two parts' lib/base/status.h check-names -o build/dev/libdt.a
echo 'char *dt_copy_it(char *a, char *b) { return strcpy(a, b); }' >>lib/base/hash.c
expect 'a banned function' 'banned function' lib/base/hash.c check-names -o build/dev/libdt.a
echo 'const char *dt_home(void) { return getenv("HOME"); }' >>lib/base/hash.c
expect 'the environment read elsewhere' 'read in lib/conf/env.c only' lib/base/hash.c check-names -o build/dev/libdt.a
echo 'typedef    int dt_loose_t;' >>lib/base/list.h
expect 'loose formatting' 'not clang-formatted|clang-format-violations' lib/base/list.h check-format
echo '[x](nowhere.md)' >>README.md
expect 'a dead link' 'README.md links to what is not there: nowhere.md' README.md check-docs
mkdir lib/secret
expect 'a folder that ARCHITECTURE.md does not name' 'does not name lib/secret' lib/secret check-docs
sed -i s,client/src/call.c,client/src/nocall.c, docs/ARCHITECTURE.md
expect 'a file that ARCHITECTURE.md names and is not there' 'names client/src/nocall.c, which is not there' docs/ARCHITECTURE.md check-docs
mv docs/decisions/0002-* docs/decisions/0009-far.md
expect 'a gap in the decisions' 'is missing' 'docs/decisions/0009-far.md' check-docs
cp "$top"/docs/decisions/0002-* docs/decisions/
printf '#include <string.h>\nint dt_lint_it(void);\nint dt_lint_it(void)\n{\n    char *p = 0;\n    return *p;\n}\n' >lib/base/lint.c
expect 'a fault that clang-tidy knows' 'null pointer' lib/base/lint.c check-tidy TIDY_OK=build/dev/tidy/lib/base/lint.c.ok

# The tests.
list_test 'Test(list, ignores_a_status) { dt_error_t e; dt_rpc_server_start(0, &e); }'; sed -i '1i#include "rpc/rpc.h"' tests/unit/list_test.c
expect 'an ignored status' 'warn_unused_result|unused-result' tests/unit/list_test.c $one_unit
list_test 'Test(list, fails) { cr_assert(0); }'
expect 'a failing test' "unit: $count passed, 1 failed" tests/unit/list_test.c $one_unit
list_test 'Test(list, crashes) { volatile int *p = NULL; *p = 1; }'
expect 'a crashing test' "unit: $count passed, 1 failed" tests/unit/list_test.c $one_unit
list_test 'Test(list, hangs, .timeout = 1) { for (volatile int i = 1; i;) continue; }'
expect 'a hanging test' "unit: $count passed, 1 failed" tests/unit/list_test.c $one_unit
echo '#include <criterion/criterion.h>' >tests/unit/empty_test.c
expect 'a program without tests' 'empty_test: exit' tests/unit/empty_test.c check-unit UNIT_BIN=$unit/empty_test
expect 'no tests at all' 'no test ran' '' check-unit UNIT_BIN=
expect 'Criterion under tsan' 'cannot run under tsan' '' check-unit PRESET=tsan
if [ -d build/asan ]; then
    asan="check-unit PRESET=asan UNIT_BIN=build/asan/tests/unit/list_test"
    list_test 'Test(list, leaks) { cr_assert(malloc(7) != NULL); }'
    expect 'a leak in a passing test' "unit: $((count + 1)) passed, 1 failed" tests/unit/list_test.c $asan
    list_test 'Test(list, overflows) { volatile int n = 2147483647; n = n + 1; }'
    expect 'undefined behaviour' "unit: $count passed, [12] failed" tests/unit/list_test.c $asan
fi
cat >tests/race/planted_race.c <<'C'
#include <pthread.h>
static int shared;
static void *add(void *arg) { for (int i = 0; i < 1000; i++) shared++; return arg; }
int main(void)
{
    pthread_t a, b;
    pthread_create(&a, 0, add, 0);
    pthread_create(&b, 0, add, 0);
    pthread_join(a, 0);
    pthread_join(b, 0);
    return shared < 0;
}
C
expect 'a race' 'data race' tests/race/planted_race.c check-race PRESET=tsan RACE_BIN=build/tsan/tests/race/planted_race
printf 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);\nint LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return n > 1 \&\& d[0] == 66 ? __builtin_trap(), 1 : 0; }\n' |
    sed 's/\\&/\&/g' >tests/fuzz/planted_fuzz.c
mkdir -p tests/fuzz/corpus/planted; echo BAD >tests/fuzz/corpus/planted/bad; echo good >tests/fuzz/corpus/planted/good
expect 'a crash in the corpus' 'corpus: 1 passed, 1 failed' '' check-corpus FUZZ_BIN=build/dev/tests/fuzz/planted_fuzz
rm -r tests/fuzz/corpus/planted
expect 'a target without a corpus' 'holds no input' tests/fuzz/planted_fuzz.c check-corpus FUZZ_BIN=build/dev/tests/fuzz/planted_fuzz

# The build.
expect 'a part that is asked for and missing' 'WITH_TORCH=yes, but it was not found' '' config WITH_TORCH=yes CXX=false PRESET=cov
expect 'an unknown preset' 'is not one of' '' all PRESET=fast
echo '.Xx nonsense' >>man/dtorch-protocol.7
expect 'a page that mandoc complains about' 'dtorch-protocol.7' man/dtorch-protocol.7 check-man
sed -i '/^\.\\" OPTIONS/d' man/dtorch-workerd.8.in
expect 'a flag that its page does not name' 'dtorch-workerd: --help fails, or the page .* does not name' man/dtorch-workerd.8.in check-man

# All faults are out again, and a function of 70 lines is fine.
lines 70 >>lib/base/status.c
if make --no-print-directory -C "$tree" check-layers check-headers check-functions check-names $one_unit >"$base/out" 2>&1; then
    passed=$((passed + 1))
else
    echo "FAILED the clean tree with a function of 70 lines:"
    tail -n 12 "$base/out"
    failed=$((failed + 1))
fi
cd "$top" || exit 1
rm -rf "$base"
echo "selftest: $passed passed, $failed failed"
[ $failed -eq 0 ]
