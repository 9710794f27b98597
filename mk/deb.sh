#!/bin/sh
# usage: deb.sh BUILD VERSION TORCH_SO TORCH_DIR
# Debian packages of BUILD in build/deb, by `make install` into a folder of its own and the lists deploy/debian/PACKAGE.files, each
# line a file or pattern there. The rest of deploy/debian is what its names say; libraries that a package needs are found out by
# dpkg-shlibdeps. Needs dpkg-dev, patchelf.
set -eu
build=$1 version=$(echo "$2" | tr - .) torch_so=${3:-} torch_dir=${4:-}
here=$PWD
out=$here/build/deb
for tool in dpkg-shlibdeps dpkg-deb patchelf; do
    command -v $tool >/dev/null || { echo "deb: $tool is missing: apt install dpkg-dev patchelf" >&2; exit 1; }
done
[ -n "$torch_so" ] || { echo "deb: LibTorch was not found, so there would be no backend and no PyTorch device (make deps)" >&2; exit 1; }
rm -rf "$out"
mkdir -p "$out/work/debian"
all=$out/all
date=$(git log -1 --format=%cD 2>/dev/null || date -R)
SOURCE_DATE_EPOCH=$(date -d "$date" +%s)
export SOURCE_DATE_EPOCH
torch=$(sed -n "s/^__version__ = '\([0-9]*\.[0-9]*\).*/\1/p" "$torch_dir/version.py")
sh mk/install.sh "$build" "$all" /usr "$torch_so" "$torch_dir/lib" >"$out/install.log"

# The device as the wheel has it, but with the library, the daemons and the backend of the other packages.
package=$all/usr/lib/python3/dist-packages/dtorch
mkdir -p "$package/lib"
cp client/python/dtorch/*.py "$package/"
cp "$build/lib/libdtorch_torch.so" "$package/lib/"
echo "$torch.0" >"$package/lib/torch-version"
info=$package-$(echo "$version" | tr + .).dist-info
mkdir "$info"
printf 'Metadata-Version: 2.1\nName: dtorch\nVersion: %s\nSummary: The PyTorch device of DTorch\n' "$version" >"$info/METADATA"
printf '[torch.backends]\ndtorch = dtorch._start:autoload\n' >"$info/entry_points.txt"
# A program that uses the device has loaded LibTorch already; an engine looks where the administrator says.
patchelf --remove-rpath "$package/lib/libdtorch_torch.so"
patchelf --set-rpath /usr/lib/dtorch/libtorch "$all"/usr/lib/dtorch/backends/*.so
find "$all/usr/sbin" "$all/usr/bin" -type f -exec strip --strip-unneeded --remove-section=.comment {} +
find "$all/usr/lib" -type f \( -name '*.so' -o -name '*.so.[0-9]*' \) -exec strip --strip-unneeded --remove-section=.comment -- {} +
find "$all/usr/lib" -type f \( -name '*.so' -o -name '*.so.[0-9]*' \) -exec chmod 0644 {} +
gzip -9n "$all"/usr/share/man/man*/*
echo "libdtorch 0 libdtorch0 (= $version)" >"$out/work/debian/shlibs.local"
printf 'dtorch (%s) unstable; urgency=medium\n\n  * See the history of the repository.\n\n -- DTorch maintainers <maintainers@dtorch.invalid>  %s\n' \
    "$version" "$date" >"$out/changelog"

field() { # PACKAGE NAME: of its paragraph, the lines that go on with it too
    awk -v RS= -v want="$1" '$0 ~ "^Package: " want "\n"' deploy/debian/control | awk -v name="$2:" '
        $1 == name { on = 1; sub("^[^ ]* ", ""); print; next }
        /^ / { if (on) print; next }
        { on = 0 }'
}

needs() { # FOLDER: what its programs and libraries need, as a Depends field
    files=$(find "$1" -type f \( -path '*/bin/*' -o -path '*/sbin/*' -o -name '*.so' -o -name '*.so.[0-9]*' \))
    [ -n "$files" ] || return 0
    cp deploy/debian/control "$out/work/debian/control"
    # shellcheck disable=SC2086  # paths without blanks
    (cd "$out/work" && dpkg-shlibdeps --ignore-missing-info -l"$all/usr/lib" -l"$torch_dir/lib" -O $files 2>"$out/shlibdeps.log") |
        sed -n 's/^shlibs:Depends=//p'
}

pack() { # PACKAGE
    name=$1 root=$out/$1
    mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$name"
    while read -r pattern; do
        # shellcheck disable=SC2086  # a pattern
        (cd "$all" && find $pattern -depth ! -type d -exec cp -a --parents {} "$root" \;)
    done <"deploy/debian/$name.files"
    cp deploy/debian/copyright "$root/usr/share/doc/$name/"
    gzip -9nc "$out/changelog" >"$root/usr/share/doc/$name/changelog.gz"
    if [ -e "deploy/debian/$name.lintian-overrides" ]; then
        mkdir -p "$root/usr/share/lintian/overrides"
        cp "deploy/debian/$name.lintian-overrides" "$root/usr/share/lintian/overrides/$name"
    fi
    for script in postinst prerm postrm; do
        [ ! -e "deploy/debian/$name.$script" ] || install -m 0755 "deploy/debian/$name.$script" "$root/DEBIAN/$script"
    done
    if [ "$name" = libdtorch0 ]; then
        echo "libdtorch 0 libdtorch0 (>= $version)" >"$root/DEBIAN/shlibs"
        echo 'activate-noawait ldconfig' >"$root/DEBIAN/triggers"
    fi
    (cd "$root" && find usr -type f -exec md5sum {} +) >"$root/DEBIAN/md5sums"
    arch=$(field "$name" Architecture)
    [ "$arch" = all ] || arch=$(dpkg --print-architecture)
    section=$(field "$name" Section)
    depends=$(field "$name" Depends | sed -e "s|\${binary:Version}|$version|g" -e "s|\${shlibs:Depends}|$(needs "$root")|" -e 's|, *$||')
    suggests=$(field "$name" Suggests)
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$name" "$version" "$arch"
        [ "$name" = dtorch-common ] || printf 'Source: dtorch\n'
        printf 'Maintainer: %s\n' "$(sed -n 's/^Maintainer: //p' deploy/debian/control)"
        printf 'Installed-Size: %s\n' "$(du -sk "$root/usr" | cut -f1)"
        [ -z "$depends" ] || printf 'Depends: %s\n' "$depends"
        [ -z "$suggests" ] || printf 'Suggests: %s\n' "$suggests"
        printf 'Section: %s\nPriority: optional\n' "${section:-admin}"
        printf 'Description: %s\n' "$(field "$name" Description | sed "s|\${torch:Version}|$torch|")"
    } >"$root/DEBIAN/control"
    find "$root" -type d -exec chmod 0755 {} +
    find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group --build "$root" "$out/" >/dev/null
}

for files in deploy/debian/*.files; do
    pack "$(basename "$files" .files)"
done
ls -l "$out"/*.deb | awk '{ print "  " $5, $NF }'
