# Sources are found by wildcard, so a new file needs no edit here.
# Generated code (protobuf-c) goes to $(BUILD)/gen and is included as "dtorch/v1/NAME.pb-c.h".
PROTOS := $(sort $(wildcard proto/*/*/*.proto proto/*/*/*/*.proto))
PROTO_C := $(PROTOS:proto/%.proto=$(BUILD)/gen/%.pb-c.c)
PROTO_O := $(PROTO_C:.c=.o)
LIB_SRC := $(sort $(wildcard lib/*/*.c) $(filter-out %/compare.c,$(wildcard lib/backend/nccl/*.c)))
CONTROLLERD_SRC := $(sort $(wildcard daemons/controllerd/*.c))
WORKERD_SRC := $(sort $(wildcard daemons/workerd/*.c))
CTL_SRC := $(sort $(wildcard client/ctl/*.c))
CLIENT_SRC := $(sort $(wildcard client/src/*.c))
SRC := $(LIB_SRC) $(CONTROLLERD_SRC) $(WORKERD_SRC) $(CTL_SRC) $(CLIENT_SRC)
HEADERS := $(sort $(wildcard lib/*/*.h lib/backend/nccl/*.h daemons/*/*.h client/*/*.h client/include/dtorch/*.h tests/lib/*.h tests/sim/*.h))
LIB := $(BUILD)/libdt.a
PROGRAMS := $(if $(CONTROLLERD_SRC),$(BUILD)/bin/dtorch-controllerd) $(if $(WORKERD_SRC),$(BUILD)/bin/dtorch-workerd) \
  $(if $(CTL_SRC),$(BUILD)/bin/dtorchctl)
objects = $(patsubst %.c,$(BUILD)/%.o,$(1))

# protoc-c writes the .c and the .h of one file in one go; the .h of all files must stand before anything compiles.
$(BUILD)/gen/%.pb-c.c $(BUILD)/gen/%.pb-c.h &: proto/%.proto
	$(call say,PROTO,$<)
	@mkdir -p $(BUILD)/gen
	$(Q)protoc-c -Iproto --c_out=$(BUILD)/gen $<
PROTO_H := $(PROTO_C:.c=.h)
$(PROTO_O): %.o: %.c $(PROTO_H)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_GEN) -MMD -MP -c $< -o $@

# Generated headers are system headers to the compiler, which does not list those: all depend on all of them.
$(BUILD)/%.o: %.c $(MAKEFILE_LIST) $(BUILD)/config.mk $(PROTO_H)
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) $(EXTRA) -MMD -MP -c $< -o $@

# The version is compiled into one object, which is made again only when its text changes.
$(BUILD)/version: FORCE
	@mkdir -p $(@D) && echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' >$@
$(BUILD)/lib/base/version.o: private EXTRA := -DDT_VERSION_TEXT='"$(VERSION)"'
$(BUILD)/lib/base/version.o: $(BUILD)/version
.PHONY: FORCE

$(LIB): $(call objects,$(LIB_SRC)) $(PROTO_O)
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f -- $@ && ar crs $@ $^

# The assembler reads these, of which the compiler lists nothing.
$(BUILD)/daemons/controllerd/page_files.o: $(wildcard daemons/controllerd/page/*)

$(BUILD)/bin/dtorch-controllerd: $(call objects,$(CONTROLLERD_SRC)) $(LIB)
$(BUILD)/bin/dtorch-workerd: $(call objects,$(WORKERD_SRC)) $(LIB)
$(BUILD)/bin/dtorchctl: $(call objects,$(CTL_SRC)) $(LIB)
$(PROGRAMS):
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) $(filter %.o,$^) $(LIB) -o $@ $(LDLIBS_ALL)

# libdtorch: objects of their own, position-independent; only what client/libdtorch.map lists is exported. The parts of lib/
# that it needs are linked in, from an archive, so that nothing else comes along.
CLIENT_PARTS := base conf wire tensor ops shard shm loop rpc pki
CLIENT_PIC := $(patsubst %.c,$(BUILD)/pic/%.o,$(CLIENT_SRC))
CLIENT_LIB := $(BUILD)/pic/libparts.a
# A sanitizer's runtime comes with the program.
CLIENT_STRICT := -Wl,--no-undefined
ifeq ($(filter dev release cov,$(PRESET)),)
CLIENT_STRICT :=
endif
CLIENT_SO := $(if $(CLIENT_SRC),$(BUILD)/lib/libdtorch.so)
$(call objects,$(CLIENT_SRC)): private EXTRA := -Iclient/include
$(BUILD)/pic/%.o: %.c $(MAKEFILE_LIST) $(BUILD)/config.mk | $(PROTO_H)
	$(call say,PIC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -Iclient/include $(EXTRA) -fPIC -MMD -MP -c $< -o $@
$(BUILD)/pic/gen/%.o: $(BUILD)/gen/%.c $(PROTO_H)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_GEN) -fPIC -MMD -MP -c $< -o $@
$(BUILD)/pic/lib/base/version.o: private EXTRA := -DDT_VERSION_TEXT='"$(VERSION)"'
$(BUILD)/pic/lib/base/version.o: $(BUILD)/version
$(CLIENT_LIB): $(patsubst %.c,$(BUILD)/pic/%.o,$(filter $(CLIENT_PARTS:%=lib/%/%),$(LIB_SRC))) $(PROTO_O:$(BUILD)/gen/%=$(BUILD)/pic/gen/%)
	$(Q)mkdir -p $(@D) && rm -f -- $@ && ar crs $@ $^
$(CLIENT_SO): $(CLIENT_PIC) $(CLIENT_LIB) client/libdtorch.map
	$(call say,SO,$@)
	@mkdir -p $(@D) && ln -sf libdtorch.so $@.0
	$(Q)$(CC) $(filter-out -pie,$(LDFLAGS_ALL)) -shared -Wl,-soname,libdtorch.so.0 -Wl,--version-script=client/libdtorch.map $(CLIENT_STRICT) $(CLIENT_PIC) $(CLIENT_LIB) -o $@ $(LDLIBS_ALL)
EXAMPLES := $(patsubst client/examples/%.c,$(BUILD)/examples/%,$(sort $(wildcard client/examples/*.c)))
$(EXAMPLES): $(BUILD)/examples/%: client/examples/%.c $(CLIENT_SO) client/include/dtorch/dtorch.h
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -g $(OPT_$(PRESET)) $(WARN) -Iclient/include $< -o $@ -L$(BUILD)/lib -ldtorch -lm -Wl,-rpath,'$$ORIGIN/../lib'
-include $(CLIENT_PIC:.o=.d) $(patsubst %.c,$(BUILD)/pic/%.d,$(filter $(CLIENT_PARTS:%=lib/%/%),$(LIB_SRC)))

.SECONDARY:
-include $(patsubst %.c,$(BUILD)/%.d,$(SRC) $(filter-out tests/so/%,$(wildcard tests/*/*.c))) $(PROTO_O:.o=.d)
