# Two commands do everything on a fresh machine: `make run` and `make test`. The rest is for daily work.

# rustup puts cargo here; `scripts/setup` may have put it there a moment ago.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

# The profile of Cargo.toml that is built, and installed: release is built soon, dist is what packages have and what benches measure.
PROFILE   ?= release
HEADWORKS := target/$(PROFILE)/headworks
# `headworks bench` looks for it beside itself, so that it goes wherever the program goes.
BENCH      = $(dir $(HEADWORKS))headworks-bench
LAB       := target/$(PROFILE)/headworks-lab
DEMO      := target/demo.img
VERSION    = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# `make install` as a package has it: make install PREFIX=/usr DESTDIR=package/root
PREFIX    ?= /usr/local
DESTDIR   ?=
SHARE      = $(DESTDIR)$(PREFIX)/share
LIB        = $(DESTDIR)$(PREFIX)/lib
# STRIP=true keeps the symbols of the installed programs.
STRIP     ?= strip
PROGRAM    = install -D -m 755 -s --strip-program=$(STRIP)

.PHONY: help run build lab library install-library uninstall-library install uninstall install-lab uninstall-lab packages packages-test docs check test test-long bench

help:            ## what there is to make
	@awk -F ' *## ' '/^[a-z-]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-14s %s\n", $$1, $$2 }' Makefile

run: build       ## serve a demo disk of 1 GiB over NBD, in the foreground
	@test -e $(DEMO) || truncate -s 1G $(DEMO)
	@exec $(HEADWORKS) serve $(DEMO) -U target/demo.sock

build:           ## the server, target/release/headworks, and what `headworks bench` runs; PROFILE=dist builds target/dist/headworks, as packages have it
	@scripts/setup
	@cargo build --profile $(PROFILE) --locked -p headworks-cli -p headworks-bench

lab:             ## the experiments: target/release/headworks-lab, which `headworks lab` runs; PROFILE=dist
	@scripts/setup
	@cargo build --profile $(PROFILE) --locked -p headworks-lab

# The profile is a release whose panics unwind, so that a call can return them.
LIBRARY   := target/library/libheadworks_c

library:         ## the C API: target/library/libheadworks_c.so and .a; the header is crates/headworks-c/include/headworks.h
	@scripts/setup
	@cargo build --profile library --locked -p headworks-c

install:         ## the server, man pages, completions, systemd units: PREFIX=/usr/local DESTDIR= PROFILE=release
	@for program in $(HEADWORKS) $(BENCH); do \
		test -x $$program || { echo "install: error: there is no $$program: 'make build' first" >&2; exit 1; }; done
	$(PROGRAM) $(HEADWORKS) $(DESTDIR)$(PREFIX)/bin/headworks
	$(PROGRAM) $(BENCH) $(DESTDIR)$(PREFIX)/bin/headworks-bench
	install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(HEADWORKS) man $(SHARE)/man/man1
	for page in packaging/man/*.[57]; do install -D -m 644 $$page $(SHARE)/man/man$${page##*.}/$${page##*/}; done
	$(HEADWORKS) completions bash >$(SHARE)/bash-completion/completions/headworks
	$(HEADWORKS) completions zsh >$(SHARE)/zsh/site-functions/_headworks
	$(HEADWORKS) completions fish >$(SHARE)/fish/vendor_completions.d/headworks.fish
	install -d $(LIB)/systemd/system
	for unit in packaging/systemd/*; do sed 's|/usr/bin/|$(PREFIX)/bin/|' $$unit >$(LIB)/systemd/system/$${unit##*/}; done
	install -D -m 644 packaging/sysusers.d/headworks.conf $(LIB)/sysusers.d/headworks.conf
	install -D -m 644 packaging/tmpfiles.d/headworks.conf $(LIB)/tmpfiles.d/headworks.conf
	install -D -m 644 packaging/prometheus/headworks.rules.yml $(SHARE)/doc/headworks/headworks.rules.yml
	install -D -m 644 packaging/grafana/headworks.json $(SHARE)/doc/headworks/grafana-headworks.json
	install -D -m 644 packaging/separate-user.conf $(SHARE)/doc/headworks/separate-user.conf
	install -D -m 644 packaging/files.conf $(SHARE)/doc/headworks/files.conf
	for example in packaging/*.toml; do test ! -e $$example || install -D -m 644 $$example $(SHARE)/doc/headworks/$${example##*/}; done

# The installed program makes the list: what `install` would lay down now, in a scratch directory. Directories that others may
# use stay, except the one of the examples.
define UNINSTALL
	@test -x $(2) || { echo "$@: error: there is no $(2): give PREFIX and DESTDIR of the installation" >&2; exit 1; }
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
		$(MAKE) -s $(1) $(3)=$(abspath $(2)) DESTDIR=$$scratch PREFIX=$(PREFIX) STRIP=true && \
		(cd $$scratch && find . -type f) | sed 's|^\.||' | while read -r file; do echo "rm -f $(DESTDIR)$$file"; rm -f "$(DESTDIR)$$file"; done
	@rmdir $(SHARE)/doc/headworks 2>/dev/null || true
endef

uninstall:       ## removes what `make install` installed: the same PREFIX= and DESTDIR=
	$(call UNINSTALL,install,$(DESTDIR)$(PREFIX)/bin/headworks,HEADWORKS)

uninstall-lab:   ## removes what `make install-lab` installed
	$(call UNINSTALL,install-lab,$(DESTDIR)$(PREFIX)/bin/headworks-lab,LAB)

install-lab:     ## the experiments, their man pages and completions: PREFIX=/usr/local DESTDIR=
	@test -x $(LAB) || { echo "install-lab: error: there is no $(LAB): 'make lab' first" >&2; exit 1; }
	$(PROGRAM) $(LAB) $(DESTDIR)$(PREFIX)/bin/headworks-lab
	install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(LAB) man $(SHARE)/man/man1
	$(LAB) completions bash >$(SHARE)/bash-completion/completions/headworks-lab
	$(LAB) completions zsh >$(SHARE)/zsh/site-functions/_headworks-lab
	$(LAB) completions fish >$(SHARE)/fish/vendor_completions.d/headworks-lab.fish

install-library: ## the C API, its header and headworks.pc: PREFIX=/usr/local DESTDIR=
	@test -e $(LIBRARY).so || { echo "install-library: error: there is no $(LIBRARY).so: 'make library' first" >&2; exit 1; }
	install -D -m 644 crates/headworks-c/include/headworks.h $(DESTDIR)$(PREFIX)/include/headworks.h
	install -D -m 755 -s --strip-program=$(STRIP) $(LIBRARY).so $(LIB)/libheadworks_c.so
	install -D -m 644 $(LIBRARY).a $(LIB)/libheadworks_c.a
	$(STRIP) --strip-debug $(LIB)/libheadworks_c.a
	install -d $(LIB)/pkgconfig
	printf '%s\n' 'Name: headworks' 'Description: block I/O path in user space' 'Version: $(VERSION)' \
		'Cflags: -I$(PREFIX)/include' 'Libs: -L$(PREFIX)/lib -lheadworks_c' 'Libs.private: -lm -ldl -lpthread' >$(LIB)/pkgconfig/headworks.pc

uninstall-library: ## removes what `make install-library` installed
	rm -f $(DESTDIR)$(PREFIX)/include/headworks.h $(LIB)/libheadworks_c.so $(LIB)/libheadworks_c.a $(LIB)/pkgconfig/headworks.pc

packages:        ## .deb, .rpm, a static program, an OCI image: target/packages/
	@scripts/setup packages
	@scripts/packages

docs:            ## the documentation as a site with search: target/book/index.html
	@scripts/setup docs
	@scripts/book

packages-test: packages ## installs each package somewhere else than here, and serves an export from it
	@scripts/setup packages-test
	@scripts/packages-test

check:           ## before a commit: format, clippy, unit tests, a minute of simulation
	@scripts/setup test
	@scripts/test check

test:            ## every test: the above, model checks, NBD clients against the real server
	@scripts/setup test
	@scripts/test all

test-long:       ## hours of simulation, deeper model checks, the NBD clients again and again
	@scripts/setup test
	@scripts/setup mutants
	@scripts/test long

bench:           ## the figures of docs/PERFORMANCE.md, side by side with the peers, of the program that packages have
	@$(MAKE) --no-print-directory build PROFILE=dist
	@scripts/setup bench
	@benches/instructions.sh
	@benches/disk-vs-direct.sh
	@benches/nbd-peers.sh
