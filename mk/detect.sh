#!/bin/sh
# usage: detect.sh LOGDIR
# Writes make variables HAVE_x, x_CFLAGS, x_LIBS. A probe compiles and links: a file that merely exists proves nothing.
set -u
log=${1:?usage: detect.sh LOGDIR}
mkdir -p "$log"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

need() { # NAME PKG: a part we cannot build without
    if ! pkg-config --exists "$2"; then
        echo "$2 is missing: run make deps, or see README.md for the package list" >&2
        exit 1
    fi
    printf '%s_CFLAGS := %s\n%s_LIBS := %s\n' "$1" "$(pkg-config --cflags "$2")" "$1" "$(pkg-config --libs "$2")"
}

probe() { # NAME SUFFIX COMPILER HEADER LIBS CFLAGS: an optional part without a .pc file
    want=$(eval "echo \"\${WITH_$1:-auto}\"")
    if [ "$want" = no ]; then
        echo "HAVE_$1 := no"
        return
    fi
    printf '#include <%s>\nint main(void) { return 0; }\n' "$4" >"$work/p.$2"
    # shellcheck disable=SC2086  # compiler, flags and libraries are lists
    if $3 $6 "$work/p.$2" -o "$work/p" $5 >"$log/$1.log" 2>&1; then
        where=$($3 $6 -M "$work/p.$2" | tr -s ' \\' '\n' | grep "/$4\$" | head -n 1)
        printf 'HAVE_%s := yes\n%s_HEADER := %s\n' "$1" "$1" "$where"
        printf '%s_CFLAGS := %s\n%s_LIBS := %s\n' "$1" "$6" "$1" "$5"
    elif [ "$want" = yes ]; then
        echo "WITH_$1=yes, but it was not found; the compiler said:" >&2
        tail -n 5 "$log/$1.log" >&2
        exit 1
    else
        echo "HAVE_$1 := no"
    fi
}

need UV libuv
need GRPC grpc
need PROTOBUFC libprotobuf-c
need MICROHTTPD libmicrohttpd
need CRYPTO 'libssl libcrypto'
need CRITERION criterion
probe CUDA c "$CC" cuda_runtime_api.h "-L$CUDA_HOME/lib64 -lcudart" "-isystem $CUDA_HOME/include"
probe NCCL c "$CC" nccl.h "-L$CUDA_HOME/lib64 -lnccl" "-isystem $CUDA_HOME/include"
probe TORCH cpp "$CXX -std=c++20" torch/headeronly/version.h "-L$TORCH_DIR/lib -Wl,-rpath,$TORCH_DIR/lib -ltorch_cpu -lc10" \
    "-isystem $TORCH_DIR/include"
