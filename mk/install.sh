#!/bin/sh
# usage: install.sh BUILD DESTDIR PREFIX [TORCH_BACKEND LIBTORCH]
# With TORCH_BACKEND that library too; it looks for LibTorch in the folder LIBTORCH, where it was when it was linked.
# Programs, manual pages, units, users, completion. Configuration goes to PREFIX/lib/dtorch as an example and is never
# written to /etc, so an upgrade cannot change what a site has set; dtorchctl setup writes that.
set -eu
build=$1 root=$2 prefix=$3
lib=$root$prefix/lib
# Units and their helpers have fixed places; only /usr/local has its own.
systemd=$lib/systemd

put() { # MODE FOLDER FILE...
    mode=$1 folder=$2
    shift 2
    install -d "$folder"
    install -m "$mode" "$@" "$folder/"
}

put 0755 "$root$prefix/sbin" "$build/bin/dtorch-controllerd" "$build/bin/dtorch-workerd"
put 0755 "$root$prefix/bin" "$build/bin/dtorchctl"
for page in "$build"/man/*.[1578]; do
    put 0644 "$root$prefix/share/man/man${page##*.}" "$page"
done
put 0644 "$root$prefix/share/dtorch/examples" config/*.conf
for unit in deploy/*.service deploy/*.socket; do
    install -d "$systemd/system"
    sed "s|/usr/sbin/|$prefix/sbin/|g" "$unit" >"$systemd/system/$(basename "$unit")"
    chmod 0644 "$systemd/system/$(basename "$unit")"
done
put 0644 "$systemd/system-preset" deploy/50-dtorch.preset
install -d "$lib/sysusers.d" "$lib/tmpfiles.d"
install -m 0644 deploy/dtorch.sysusers "$lib/sysusers.d/dtorch.conf"
install -m 0644 deploy/dtorch.tmpfiles "$lib/tmpfiles.d/dtorch.conf"
install -d "$root$prefix/share/bash-completion/completions"
"$build/bin/dtorchctl" completion bash >"$root$prefix/share/bash-completion/completions/dtorchctl"
put 0644 "$root$prefix/share/doc/dtorch" README.md LICENSE docs/ARCHITECTURE.md
# libdtorch: programs link with libdtorch.so and load libdtorch.so.0.
install -d "$lib"
install -m 0755 "$build/lib/libdtorch.so" "$lib/libdtorch.so.0"
ln -sf libdtorch.so.0 "$lib/libdtorch.so"
put 0644 "$root$prefix/include/dtorch" client/include/dtorch/*.h
install -d "$lib/pkgconfig"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$(cat "$build/version")|" client/libdtorch.pc.in >"$lib/pkgconfig/libdtorch.pc"
chmod 0644 "$lib/pkgconfig/libdtorch.pc"
put 0644 "$root$prefix/share/dtorch/examples" client/examples/*.c
put 0644 "$root$prefix/share/dtorch/examples/python" client/python/examples/*.py
if [ $# -ge 5 ]; then
    put 0755 "$lib/dtorch/backends" "$4"
    echo "the torch backend uses LibTorch in $5 (its rpath; build with TORCH_DIR= of a lasting place, or change it with patchelf)"
fi
echo "installed into ${root:-/}: programs in $prefix, units in $prefix/lib/systemd; next: dtorchctl setup"
