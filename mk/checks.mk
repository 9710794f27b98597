# Checks on the sources themselves.
HEADER_OK := $(HEADERS:%=$(BUILD)/headers/%.ok)
CXX_SRC := $(sort $(wildcard lib/backend/*/*.cpp lib/backend/torch/*.h lib/backend/nccl/compare.c client/python/csrc/*.cpp client/python/csrc/*.h))
ALL_SRC := $(HEADERS) $(SRC) $(sort $(wildcard tests/*/*.c client/examples/*.c))

# A header must compile alone: it includes what it uses. One stamp a header, so only changed ones are tried again.
$(BUILD)/headers/%.ok: % $(MAKEFILE_LIST) $(BUILD)/config.mk $(PROTO_H)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -Itests -I. -Iclient/include -fsyntax-only -x c -include $< -MMD -MP -MT $@ -MF $@.d /dev/null
	$(Q)touch $@
-include $(HEADER_OK:%=%.d)

# One stamp a file here too: a compile each, and twice the time of one.
# With __NO_CTYPE toupper() and its like are calls, not macros whose nested statements count as ours.
$(BUILD)/tidy/%.ok: private CFLAGS_ALL += -D__NO_CTYPE
TIDY_OK := $(SRC:%=$(BUILD)/tidy/%.ok)
# The static analyzer gives a function up after so many states: at clang's own 225,000 it takes four times as long.
TIDY_NODES ?= 75000
TIDY_DEPTH := -Xclang -analyzer-config -Xclang max-nodes=$(TIDY_NODES)
$(BUILD)/tidy/%.ok: % .clang-tidy $(BUILD)/config.mk | $(PROTO_H)
	$(call say,TIDY,$<)
	@mkdir -p $(@D)
	$(Q)clang-tidy --quiet $< -- $(filter-out -fcf-protection,$(CFLAGS_ALL)) -Iclient/include -DDT_VERSION_TEXT='""' $(TIDY_DEPTH) 2>$@.log || { cat $@.log; exit 1; }
	$(Q)$(CC) $(CFLAGS_ALL) -Iclient/include -DDT_VERSION_TEXT='""' -MM -MP -MT $@ -MF $@.d $< && touch $@
-include $(TIDY_OK:%=%.d)
# C++ where LibTorch is, whose headers are the bulk of the time.
CXX_TIDY_OK := $(if $(TORCH_SO),$(patsubst %,build/torch/tidy/%.ok,$(filter %.cpp,$(CXX_SRC))))
build/torch/tidy/%.ok: % .clang-tidy $(wildcard lib/backend/*/*.h lib/device/*.h client/python/csrc/*.h)
	$(call say,TIDY,$<)
	@mkdir -p $(@D)
	$(Q)clang-tidy --quiet $< -- -std=c++20 $(TORCH_FLAGS) $(TORCH_CFLAGS) -Iclient/include 2>$@.log || { cat $@.log; exit 1; }
	$(Q)touch $@

.PHONY: check-clang check-tidy-torch check-format check-layers check-names check-headers check-functions check-tidy check-selftest check-docs format
check-headers: $(HEADER_OK) ## each header compiles alone
	@echo "headers: $(words $(HEADERS)) compile alone"
check-layers: ## no include points to a higher layer
	$(Q)sh mk/check-layers.sh
check-names: $(LIB) ## prefixes of symbols and macros, banned functions
	$(Q)sh mk/check-names.sh $(LIB) $(ALL_SRC)
check-functions: ## no function above 70 lines
	$(Q)sh mk/check-functions.sh 70 $(ALL_SRC) $(CXX_SRC)
check-format: ## clang-format has nothing to change
	$(Q)clang-format --dry-run -Werror $(ALL_SRC) $(CXX_SRC)
	@echo "format: $(words $(ALL_SRC) $(CXX_SRC)) files clean"
# What clang warns of and gcc does not. Code of clang's is made, linked and run by check-fuzz.
CLANG_OK := $(filter %.c,$(ALL_SRC))
CLANG_OK := $(CLANG_OK:%=$(BUILD)/clang/%.ok)
$(BUILD)/clang/%.ok: % $(BUILD)/config.mk | $(PROTO_H)
	@mkdir -p $(@D)
	$(Q)clang $(filter-out -Wcast-qual,$(CFLAGS_ALL)) -Itests -I. -Iclient/include -DDT_VERSION_TEXT='""' -fsyntax-only -MMD -MP -MT $@ -MF $@.d $< && touch $@
-include $(CLANG_OK:%=%.d)
check-clang: $(CLANG_OK) ## clang has nothing to say of any file
	@echo "clang: $(words $(CLANG_OK)) files compile"
check-tidy: $(TIDY_OK) ## clang-tidy, the slow lint
	@echo "tidy: $(words $(TIDY_OK)) files clean"
check-tidy-torch: $(CXX_TIDY_OK) ## the same for the C++ over LibTorch; half a minute a file
	@echo "tidy-torch: $(words $(CXX_TIDY_OK)) files clean"
check-selftest: ## plant one fault for each check in a copy of the tree, and see each caught
	$(Q)sh tests/selftest.sh
check-docs: ## no dead link in a document, every folder named in ARCHITECTURE.md
	$(Q)sh mk/check-docs.sh
format: ## format the files that differ from HEAD, else all
	$(Q)clang-format -i $(or $(shell git diff --name-only --relative HEAD -- '*.c' '*.h' 2>/dev/null),$(ALL_SRC))
