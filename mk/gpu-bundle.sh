#!/bin/sh
# usage: gpu-bundle.sh BUILD VERSION PYTHON OUT.tar.gz
# Packs a build with the libraries that it needs into an archive for a machine with a GPU, PyTorch of the same minor version
# and no internet: unpack it anywhere, then ./start there. LibTorch, CUDA and NCCL are the target's own.
set -eu
build=$1 version=$2 python=$3 out=$4
name=dtorch-gpu-$version
stage=$build/gpu-bundle
rm -rf "$stage"
mkdir -p "$stage/$name/deps" "$stage/$name/spare" "$stage/$name/tests"
root=$stage/$name
"$python" client/python/build_dtorch.py tree "$stage/tree" "$build"
cp -rL "$stage/tree" "$root/python"
cp "$build/tests/gpu/group" "$build/examples/matmul" "$root/tests/"
cp -r tests/python "$root/tests/python"
rm -rf "$root/tests/python/__pycache__"
cp mk/gpu-start.sh "$root/start"
cp LICENSE "$root/"
cp "$root/python/dtorch/lib/torch-version" "$root/torch-version"
objdump -T "$root"/python/dtorch/bin/* "$root"/python/dtorch/lib/*.so* "$root"/tests/group |
    sed -n 's/.*GLIBC_\([0-9.]*\)[ )].*/\1/p' | sort -uV | tail -n 1 >"$root/glibc-version"
# What a Debian has and the target may not. Its C and C++ libraries are newer, or it is told so; OpenSSL and zlib it has.
for file in "$root"/python/dtorch/bin/* "$root"/python/dtorch/lib/libdtorch.so.0; do ldd "$file"; done |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
    case ${library##*/} in
    libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | ld-linux* | libstdc++.so.* | libgcc_s.so.*) ;;
    libssl.so.* | libcrypto.so.* | libz.so.*) cp -L "$library" "$root/spare/" ;;
    *) cp -L "$library" "$root/deps/" ;;
    esac
done
find "$root" -type f \( -name '*.so*' -o -perm -100 \) ! -name start -exec strip -g {} + 2>/dev/null || true
chmod 755 "$root/start"
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$stage" -czf "$out" "$name"
torch=$(cat "$root/torch-version")
rm -rf "$stage"
echo "gpu-bundle: $out, $(($(wc -c <"$out") / 1048576)) MiB, for PyTorch $torch"
