# NCCL: lib/backend/nccl opens it at run time by declarations of its own, so nothing of NVIDIA's is needed to build. Where
# its headers are (the wheels that come with torch, else CUDA_HOME), both are compared, and linked against the libraries.
NCCL_WHEELS := $(if $(TORCH_DIR),$(abspath $(TORCH_DIR)/../nvidia))
NCCL_LIBRARY := $(firstword $(wildcard $(NCCL_WHEELS)/nccl/lib/libnccl.so.2 $(CUDA_HOME)/lib64/libnccl.so.2))
NCCL_RUNTIME := $(firstword $(wildcard $(NCCL_WHEELS)/cu13/lib/libcudart.so.13 $(CUDA_HOME)/lib64/libcudart.so.13))
NCCL_INCLUDE := $(if $(findstring $(NCCL_WHEELS)/,$(NCCL_LIBRARY)),$(NCCL_WHEELS)/nccl/include $(NCCL_WHEELS)/cu13/include,$(CUDA_HOME)/include)
HAVE_NCCL_HEADERS := $(if $(filter no,$(WITH_NCCL)),,$(and $(NCCL_LIBRARY),$(NCCL_RUNTIME),$(wildcard $(addsuffix /nccl.h,$(NCCL_INCLUDE)))))
NCCL_COMPARED := $(if $(HAVE_NCCL_HEADERS),$(BUILD)/nccl-compared.so)
$(BUILD)/nccl-compared.so: lib/backend/nccl/compare.c lib/backend/nccl/api.h mk/nccl.mk
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -Wall -Wextra -Werror -fPIC -shared -Wl,--no-undefined $(addprefix -isystem ,$(NCCL_INCLUDE)) -Ilib $< -o $@ $(NCCL_LIBRARY) $(NCCL_RUNTIME)

GPU_BIN := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard tests/gpu/*.c)))
$(GPU_BIN): %: %.o $(BUILD)/tests/lib/grouprig.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $^ -o $@ $(LDLIBS_ALL)
.PHONY: check-gpu
check-gpu: $(GPU_BIN) $(NCCL_COMPARED) ## NCCL on the GPUs of this machine; without one it says so, and compares headers only
	@echo "gpu: NCCL's own headers: $(if $(NCCL_COMPARED),compared and linked,not here)"
	$(Q)$(call run_tests,--lines gpu $(BUILD)/results $(GPU_BIN) $(if $(filter no,$(WITH_NCCL)),,$(NCCL_LIBRARY) $(NCCL_RUNTIME)))
# A build for a machine with a GPU, PyTorch of the same version and no internet.
GPU_BUNDLE := build/dtorch-gpu-$(VERSION).tar.gz
VENV_PYTHON := $(firstword $(wildcard build/venv/bin/python) python3)
.PHONY: gpu-bundle check-gpu-bundle
gpu-bundle: all $(GPU_BIN) $(BUILD)/examples/matmul ## an archive of this build with its libraries, for a GPU machine; use PRESET=release
	$(Q)sh mk/gpu-bundle.sh $(BUILD) $(VERSION) $(VENV_PYTHON) $(GPU_BUNDLE)
check-gpu-bundle: $(if $(TORCH_SO),gpu-bundle) ## the archive unpacks elsewhere and its programs run there, with or without a GPU
	$(Q)sh mk/check-gpu-bundle.sh $(if $(TORCH_SO),$(GPU_BUNDLE) $(VENV_PYTHON),none)
