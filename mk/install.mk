# Installing and packing. mk/install.sh says what goes where. DESTDIR is put in front of all paths.
PREFIX ?= /usr
DESTDIR ?=
MAN_OUT := $(BUILD)/man
MAN_PAGES := dtorch-controllerd.8 dtorch-workerd.8 dtorchctl.1 dtorch.conf.5 dtorch-protocol.7
# The options in a page are printed by the program, from the table that it reads them with.
$(MAN_OUT)/%.8: man/%.8.in $(BUILD)/bin/%
	@mkdir -p $(@D)
	$(Q)$(BUILD)/bin/$* --print=flags >$@.flags
	$(Q)sed -e '/^\.\\" OPTIONS$$/r $@.flags' -e '/^\.\\" OPTIONS$$/d' $< >$@
$(MAN_OUT)/dtorch.conf.5: $(BUILD)/bin/dtorch-controllerd
	$(Q)mkdir -p $(@D) && $< --print=dtorch.conf.5 >$@
$(MAN_OUT)/dtorchctl.1: man/dtorchctl.1.in $(BUILD)/bin/dtorchctl
	$(Q)mkdir -p $(@D) && $(BUILD)/bin/dtorchctl --man $< >$@
$(MAN_OUT)/dtorch-protocol.7: man/dtorch-protocol.7
	$(Q)mkdir -p $(@D) && cp $< $@

.PHONY: man install deb check-deb check-machines check-fresh dist check-man check-install config-files
config-files: all ## write config/*.conf anew from the option tables
	$(Q)for f in controllerd workerd client; do $(BUILD)/bin/dtorch-controllerd --print=$$f.conf >config/$$f.conf || exit 1; done
man: $(MAN_PAGES:%=$(MAN_OUT)/%) ## make the manual pages into build/PRESET/man
install: all man ## install below DESTDIR=, PREFIX=/usr; use PRESET=release
	$(Q)sh mk/install.sh $(BUILD) "$(DESTDIR)" "$(PREFIX)" $(if $(TORCH_SO),"$(TORCH_SO)" "$(TORCH_DIR)/lib")
check-install: all man ## install below a folder; a C program is built with pkg-config and run there
	$(Q)sh mk/check-install.sh $(BUILD)
deb: ## Debian packages into build/deb; needs dpkg-dev and patchelf
	+$(Q)$(MAKE) --no-print-directory PRESET=release all man
	$(Q)sh mk/deb.sh build/release "$(VERSION)" $(if $(TORCH_SO),"$(TORCH_SO)" "$(TORCH_DIR)")
check-deb: deb ## the packages under lintian, installed into a small Debian, started by its systemd; no part of make test: needs lintian, root
	$(Q)sh tests/system/deb.sh build/deb build/release
check-machines: deb ## the packages on three machines, each with its own systemd and network: joined, a cable pulled, drained, upgraded; needs root
	$(Q)sh tests/system/machines.sh build/deb $(abspath $(TORCH_DIR)/..)
FRESH ?= both
check-fresh: ## FRESH=demo|test|both: README's commands from nothing in a new Debian 12, which is fetched; an hour, needs root
	$(Q)sh tests/system/fresh.sh $(FRESH)
dist: ## a source archive that is the same from every checkout of a commit
	$(Q)sh mk/dist.sh $(VERSION)
check-man: man all ## mandoc -Tlint, and each program's --help against its page
	$(Q)sh mk/check-man.sh $(BUILD) $(MAN_PAGES:%=$(MAN_OUT)/%)
