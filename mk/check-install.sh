#!/bin/sh
# usage: check-install.sh BUILD: `make install` below a folder, and what a user of it does: a C program is compiled with what
# pkg-config says of it, and run; libdtorch finds the daemons that were installed beside it.
# Ends with "install: N passed, N failed".
set -u
build=$1
root=$PWD/$build/installed
passed=0 failed=0
rm -rf "$root"
is() { # WHAT STATUS: 0 is good
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $1"
        tail -n 20 "$build/installed.log"
    fi
}
sh mk/install.sh "$build" "$root" /usr >"$build/installed.log" 2>&1
is 'make install with DESTDIR=' $?
PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$root/usr/lib/pkgconfig
export PKG_CONFIG_SYSROOT_DIR PKG_CONFIG_PATH
[ "$(pkg-config --modversion libdtorch)" = "$(cat "$build/version")" ]
is 'pkg-config tells the version' $?
# shellcheck disable=SC2046  # words
${CC:-cc} "$root/usr/share/dtorch/examples/matmul.c" $(pkg-config --cflags --libs libdtorch) -o "$root/matmul" >"$build/installed.log" 2>&1
is 'a program compiles and links with its flags' $?
env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$root/usr/lib" TMPDIR="${TMPDIR:-/tmp}" timeout 300 "$root/matmul" >"$build/installed.log" 2>&1
is 'it runs on a private cluster of the installed daemons' $?
rm -rf "$root"
echo "install: $passed passed, $failed failed"
[ $failed -eq 0 ]
