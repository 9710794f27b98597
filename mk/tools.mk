# Tools for people: dependencies, everything that must pass, a demonstration, a cluster in one terminal, figures.
N ?= 3
ONLY ?=
.PHONY: deps test demo run-dev bench compdb lint venv
deps: ## install the missing packages of mk/packages.txt; nothing else
	$(Q)sh mk/deps.sh
test: ## all checks and test tiers, gcc and clang; ends with "N passed, N failed"
	+$(Q)MAKE=$(MAKE) sh mk/test.sh
demo: ## install what is missing, build; a controller and three workers; one is killed, and it is shown who noticed when
	+$(Q)sh mk/deps.sh && $(MAKE) --no-print-directory all
	$(Q)bash tests/demo.sh $(abspath $(BUILD)/bin)
run-dev: all ## a controller and N=3 workers in this terminal; Ctrl-C ends all
	$(Q)bash mk/run-dev.sh $(abspath $(BUILD)/bin) $(N)
bench: ## the figures, one JSON line each, also in build/bench.jsonl; ONLY=key,key
	+$(Q)$(MAKE) --no-print-directory PRESET=release all bench-programs
	$(Q)sh mk/bench.sh build/release "$(ONLY)"
bench-programs: $(BENCH_BIN)
lint: check-tidy ## the same as check-tidy
compdb: ## compile_commands.json for clangd
	+$(Q)$(MAKE) --no-print-directory -nB V=1 all tests 2>/dev/null | sh mk/compdb.sh >compile_commands.json
	@echo "compile_commands.json: $$(grep -c '"file"' compile_commands.json) files"
