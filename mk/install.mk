# Installing and packing. mk/install.sh says what goes where. DESTDIR is put in front of all paths.
PREFIX ?= /usr
DESTDIR ?=
MAN_OUT := $(BUILD)/man
MAN_PAGES := dtorch-controllerd.8 dtorch-workerd.8 dtorchctl.1 dtorch.conf.5 dtorch-protocol.7
MAN_TOOL := $(BUILD)/man/generate

$(BUILD)/man/%: private EXTRA := -I.
$(MAN_TOOL): $(BUILD)/man/generate.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $^ -o $@ $(LDLIBS_ALL)
# The options in a page come from the tables that the program reads them with.
$(MAN_OUT)/%: man/%.in $(MAN_TOOL)
	$(Q)$(MAN_TOOL) $< >$@.tmp && mv $@.tmp $@
$(MAN_OUT)/dtorch.conf.5: $(MAN_TOOL)
	$(Q)$(MAN_TOOL) dtorch.conf.5 >$@.tmp && mv $@.tmp $@
$(MAN_OUT)/dtorchctl.1: man/dtorchctl.1.in $(BUILD)/bin/dtorchctl
	$(Q)mkdir -p $(@D) && $(BUILD)/bin/dtorchctl --man $< >$@.tmp && mv $@.tmp $@

.PHONY: man install dist check-man
man: $(MAN_PAGES:%=$(MAN_OUT)/%) ## make the manual pages into build/PRESET/man
install: all man ## install below DESTDIR=, PREFIX=/usr; use PRESET=release
	$(Q)sh mk/install.sh $(BUILD) "$(DESTDIR)" "$(PREFIX)"
dist: ## a source archive that is the same from every checkout of a commit
	$(Q)sh mk/dist.sh $(VERSION)
check-man: man all ## mandoc -Tlint, and each program's --help against its page
	$(Q)sh mk/check-man.sh $(BUILD) $(MAN_PAGES:%=$(MAN_OUT)/%)
