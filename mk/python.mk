# The PyTorch device of the Python package: C++ over LibTorch and libdtorch, no Python inside. One library for every
# Python. Built where LibTorch was found, else left out; not by presets that instrument, since LibTorch is not. Its objects are
# the same for all presets: compiled once.
DEVICE_SRC := $(sort $(wildcard client/python/csrc/*.cpp))
DEVICE_SO := $(if $(filter yes,$(HAVE_TORCH)),$(if $(filter dev release,$(PRESET)),$(BUILD)/lib/libdtorch_torch.so))
DEVICE_OBJ := $(DEVICE_SRC:%.cpp=build/device/%.o)
DEVICE_FLAGS := -O2 -g -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -Wall -Wextra -Werror -D_GNU_SOURCE \
  -Iclient/include -Ilib

# LibTorch's headers are most of the time: they are read once for all files.
DEVICE_CXX := $(CXX) -std=c++20 $(DEVICE_FLAGS) $(TORCH_CFLAGS) -MMD -MP
build/device/pch.h.gch: client/python/csrc/pch.h mk/detect.sh mk/requirements.txt
	$(call say,PCH,$<)
	@mkdir -p $(@D)
	$(Q)$(DEVICE_CXX) -x c++-header -c $< -o $@
build/device/%.o: %.cpp build/device/pch.h.gch mk/detect.sh mk/requirements.txt
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(DEVICE_CXX) -include build/device/pch.h -c $< -o $@
$(BUILD)/lib/libdtorch_torch.so: $(DEVICE_OBJ) $(CLIENT_LIB) $(CLIENT_SO)
	$(call say,LD,$@)
	$(Q)$(CXX) -shared -Wl,--no-undefined -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,-rpath,'$$ORIGIN' -Wl,--exclude-libs,ALL \
	  $(DEVICE_OBJ) -o $@ $(CLIENT_LIB) -L$(BUILD)/lib -ldtorch $(TORCH_LIBS)
.PHONY: device
device: $(DEVICE_SO) $(BACKENDS) $(PROGRAMS) ## build the PyTorch device alone
	@echo "device: $(or $(DEVICE_SO),left out: LibTorch was not found (make deps), or the preset instruments)"
-include $(DEVICE_OBJ:.o=.d)
