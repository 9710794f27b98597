#!/bin/sh
# usage: version.sh
# The one place that knows the version: the last tag and what came since; in an unpacked archive what make dist wrote
# into the file VERSION; else the number below.
base=0.1.0
[ -r VERSION ] && { cat VERSION; exit; }
described=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null) && { echo "${described#v}"; exit; }
# The count of commits goes first, so that a package of a later commit is the newer one.
commit=$(git rev-parse --short=10 HEAD 2>/dev/null) && { echo "$base+$(git rev-list --count HEAD).g$commit"; exit; }
echo "$base"
