# The torch backend: one shared object for all presets, since a daemon loads it at run time and
# LibTorch itself is not instrumented either. Built where LibTorch was found (make config), else left out.
TORCH_SO := $(if $(filter yes,$(HAVE_TORCH)),build/torch/dtorch-backend-torch.so)
TORCH_OBJ := $(patsubst %.cpp,build/torch/%.o,$(sort $(wildcard lib/backend/torch/*.cpp))) \
  $(patsubst %.c,build/torch/%.o,lib/base/status.c lib/device/host.c lib/device/sysfile.c $(sort $(wildcard lib/tensor/*.c)))
TORCH_FLAGS := -O2 -g -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -Wall -Wextra -Werror -D_GNU_SOURCE -Ilib
TORCH_MADE := mk/torch.mk mk/detect.sh mk/requirements.txt

build/torch/%.o: %.cpp $(TORCH_MADE)
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++20 $(TORCH_FLAGS) $(TORCH_CFLAGS) -MMD -MP -c $< -o $@
build/torch/%.o: %.c $(TORCH_MADE) | $(PROTO_H)
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 $(TORCH_FLAGS) -isystem $(BUILD)/gen -MMD -MP -c $< -o $@
build/torch/dtorch-backend-torch.so: $(TORCH_OBJ)
	$(call say,LD,$@)
	$(Q)$(CXX) -shared -Wl,--no-undefined -Wl,--gc-sections -Wl,-z,relro,-z,now $^ -o $@ $(TORCH_LIBS)
# A program looks for backends in ../lib/dtorch/backends: here as where it is installed.
BACKENDS := $(TORCH_SO:build/torch/%=$(BUILD)/lib/dtorch/backends/%)
$(BUILD)/lib/dtorch/backends/%.so: build/torch/%.so
	@mkdir -p $(@D) && ln -sf $(abspath $<) $@
.PHONY: torch
torch: $(BACKENDS) ## build the torch backend alone
	@echo "torch: $(or $(TORCH_SO),left out: LibTorch was not found (make deps))"
-include $(TORCH_OBJ:.o=.d)
