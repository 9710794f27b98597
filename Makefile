# DTorch's build. `make help` lists the targets, `make config` says what was found.
# Variables: PRESET=dev|release|asan|tsan|cov|fuzz  CC=gcc|clang  V=1  WITH_CUDA, WITH_NCCL, WITH_TORCH=auto|yes|no
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
PRESET ?= dev
ifeq ($(PRESET),fuzz)
override CC := clang
endif
BUILD := build/$(PRESET)$(if $(filter-out fuzz,$(PRESET)),$(if $(filter clang%,$(notdir $(CC))),-clang))

include mk/detect.mk mk/flags.mk mk/rules.mk mk/torch.mk mk/python.mk mk/tests.mk mk/nccl.mk mk/checks.mk mk/install.mk mk/tools.mk

.PHONY: all help clean
all: $(LIB) $(PROGRAMS) $(CLIENT_SO) $(BACKENDS) $(DEVICE_SO) ## build the daemons, dtorchctl, libdtorch, the torch backend and device
help: ## list the targets
	@sed -n 's/^\([a-z][a-z%-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | sort | awk -F'|' '{printf "  %-18s %s\n", $$1, $$2}'
clean: ## remove the build folder
	rm -rf build
