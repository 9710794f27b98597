#!/bin/sh
# usage: dist.sh VERSION
# build/dtorch-VERSION.tar.gz of what is committed: same commit, same bytes. It carries its version in the file VERSION.
set -eu
version=$1
name=dtorch-$version
stage=build/dist
rm -rf "$stage"
mkdir -p "$stage/$name"
date=$(git log -1 --format=%cI)
git archive HEAD | tar -x -C "$stage/$name"
echo "$version" >"$stage/$name/VERSION"
tar --sort=name --mtime="$date" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw -C "$stage" -cf - "$name" |
    gzip -n9 >"build/$name.tar.gz"
rm -rf "$stage"
sha256sum "build/$name.tar.gz"
