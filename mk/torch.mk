# The torch backend, the only C++ here: one shared object for all presets, since a daemon loads it at run time and
# LibTorch itself is not instrumented either. Built where LibTorch was found (make config), else left out.
TORCH_SO := $(if $(filter yes,$(HAVE_TORCH)),build/torch/dtorch-backend-torch.so)
TORCH_OBJ := $(patsubst %.cpp,build/torch/%.o,$(sort $(wildcard lib/backend/torch/*.cpp))) \
  $(patsubst %.c,build/torch/%.o,lib/base/status.c $(sort $(wildcard lib/tensor/*.c)))
TORCH_FLAGS := -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror -D_GNU_SOURCE -Ilib
TORCH_MADE := mk/torch.mk mk/detect.sh mk/requirements.txt

build/torch/%.o: %.cpp $(TORCH_MADE)
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++20 $(TORCH_FLAGS) $(TORCH_CFLAGS) -MMD -MP -c $< -o $@
build/torch/%.o: %.c $(TORCH_MADE)
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 $(TORCH_FLAGS) -MMD -MP -c $< -o $@
build/torch/dtorch-backend-torch.so: $(TORCH_OBJ)
	$(call say,LD,$@)
	$(Q)$(CXX) -shared -Wl,--no-undefined -Wl,-z,relro,-z,now $^ -o $@ $(TORCH_LIBS)
.PHONY: torch
torch: $(TORCH_SO) ## build the torch backend alone
	@echo "torch: $(or $(TORCH_SO),left out: LibTorch was not found (make deps))"
-include $(TORCH_OBJ:.o=.d)
