# Flags by preset. Each preset (and clang) has its own build folder, so they never mix.
# dev: while writing.  release: what is installed.  asan: address, leak, undefined.  tsan: data races (race tests, and
# daemons that component tests start).  cov: coverage.  fuzz: libFuzzer, clang only.
HARDEN := -D_FORTIFY_SOURCE=2 -fstack-protector-strong -fPIE
OPT_dev := -O1 $(HARDEN)
OPT_release := -O2 $(HARDEN) -fstack-clash-protection -fcf-protection
OPT_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
OPT_tsan := -O1 -fsanitize=thread
OPT_cov := -O0 --coverage
OPT_fuzz := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
ifeq ($(OPT_$(PRESET)),)
$(error PRESET=$(PRESET) is not one of dev, release, asan, tsan, cov, fuzz)
endif

WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith \
  -Wwrite-strings -Wformat=2 -Wundef -Werror=implicit-function-declaration
# protobuf-c's INIT macros cast const away; gcc knows that they come from a system header, clang does not.
WARN += $(if $(findstring clang,$(CC)),,-Wcast-qual)
VERSION := $(shell sh mk/version.sh)
BASE_CFLAGS := -std=gnu11 -g -D_GNU_SOURCE $(OPT_$(PRESET)) -fno-omit-frame-pointer -fvisibility=hidden -Ilib -isystem $(BUILD)/gen \
  $(UV_CFLAGS) $(GRPC_CFLAGS) $(PROTOBUFC_CFLAGS) $(MICROHTTPD_CFLAGS) $(CRYPTO_CFLAGS)
CFLAGS_GEN := $(BASE_CFLAGS)
CFLAGS_ALL := $(BASE_CFLAGS) $(WARN) $(CFLAGS)
LDFLAGS_ALL := $(OPT_$(PRESET)) -Wl,--as-needed -Wl,-z,relro,-z,now $(if $(filter dev release,$(PRESET)),-pie) $(LDFLAGS)
LDLIBS_ALL := $(GRPC_LIBS) -lgpr $(UV_LIBS) $(PROTOBUFC_LIBS) $(MICROHTTPD_LIBS) $(CRYPTO_LIBS) -ldl -lpthread -lm
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(Q),@printf '  %-5s %s\n' '$(1)' '$(2)')
