# Optional parts are looked for once, into build/PRESET/config.mk, and again when detect.sh or what they are looked for with changes:
# compilers, folders, these variables. WITH_X = auto | yes | no; yes and missing stops the build.
WITH_CUDA ?= auto
WITH_NCCL ?= auto
WITH_TORCH ?= auto
CUDA_HOME ?= /usr/local/cuda
# Where LibTorch is: the folder of the Python package that holds include/ and lib/.
ifeq ($(TORCH_DIR),) # not ?=: a make above this one may have looked before make deps brought it
TORCH_DIR := $(abspath $(firstword $(wildcard build/venv/lib/python3*/site-packages/torch)))
endif
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
export CC CXX WITH_CUDA WITH_NCCL WITH_TORCH CUDA_HOME TORCH_DIR

# A config.mk that would be the same is not touched, since all objects depend on it.
SOUGHT := $(CC) $(CXX) $(WITH_CUDA) $(WITH_NCCL) $(WITH_TORCH) $(CUDA_HOME) $(TORCH_DIR)
ifneq ($(strip $(SOUGHT)),$(strip $(file <$(BUILD)/config.for)))
$(BUILD)/config.for: FORCE
endif
$(BUILD)/config.mk: $(BUILD)/config.for ;
$(BUILD)/config.for: mk/detect.sh
	@mkdir -p $(@D)
	@sh mk/detect.sh $(@D)/probe >$(@D)/config.tmp
	@cmp -s $(@D)/config.tmp $(@D)/config.mk || cp $(@D)/config.tmp $(@D)/config.mk
	@rm $(@D)/config.tmp && echo '$(SOUGHT)' >$@

# help and clean must work on a bare machine and must not leave a build folder behind.
ifneq ($(filter-out help clean deps demo dist test fuzz-% check-fuzz check-fresh,$(or $(MAKECMDGOALS),all)),)
include $(BUILD)/config.mk
endif

.PHONY: config
config: ## show what was found and where
	@cat $(BUILD)/config.mk
