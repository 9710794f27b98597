#!/bin/sh
# usage: deb.sh PACKAGES BUILD
# The Debian packages of the folder PACKAGES: lintian has nothing to say of them, and units.sh passes with them installed in place
# of BUILD's files. Its line is "units: N passed, N failed".
set -eu
packages=$1 build=$2
command -v lintian >/dev/null || { echo "deb: lintian is missing: apt install lintian" >&2; exit 1; }
set -- --fail-on error,warning
[ "$(id -u)" -ne 0 ] || set -- "$@" --allow-root
lintian "$@" "$packages"/*.deb
echo "deb: lintian has nothing to say of $(find "$packages" -maxdepth 1 -name '*.deb' | wc -l) packages"
PACKAGES=$packages exec sh "$(dirname "$0")/units.sh" "$build"
