# Sources are found by wildcard, so a new file needs no edit here.
# Generated code (protobuf-c) goes to $(BUILD)/gen and is included as "dtorch/v1/NAME.pb-c.h".
PROTOS := $(sort $(wildcard proto/*/*/*.proto proto/*/*/*/*.proto))
PROTO_C := $(PROTOS:proto/%.proto=$(BUILD)/gen/%.pb-c.c)
PROTO_O := $(PROTO_C:.c=.o)
LIB_SRC := $(sort $(wildcard lib/*/*.c))
CONTROLLERD_SRC := $(sort $(wildcard daemons/controllerd/*.c))
WORKERD_SRC := $(sort $(wildcard daemons/workerd/*.c))
CTL_SRC := $(sort $(wildcard client/ctl/*.c))
SRC := $(LIB_SRC) $(CONTROLLERD_SRC) $(WORKERD_SRC) $(CTL_SRC)
HEADERS := $(sort $(wildcard lib/*/*.h daemons/*/*.h client/*/*.h client/include/dtorch/*.h tests/lib/*.h tests/sim/*.h))
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

$(BUILD)/bin/dtorch-controllerd: $(call objects,$(CONTROLLERD_SRC)) $(LIB)
$(BUILD)/bin/dtorch-workerd: $(call objects,$(WORKERD_SRC)) $(LIB)
$(BUILD)/bin/dtorchctl: $(call objects,$(CTL_SRC)) $(LIB)
$(PROGRAMS):
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) $(filter %.o,$^) $(LIB) -o $@ $(LDLIBS_ALL)

.SECONDARY:
-include $(patsubst %.c,$(BUILD)/%.d,$(SRC) $(filter-out tests/so/%,$(wildcard tests/*/*.c))) $(PROTO_O:.o=.d)
