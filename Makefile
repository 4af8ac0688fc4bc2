# Two commands do everything on a fresh machine: `make run` and `make test`. The rest is for daily work.

# rustup puts cargo here; `scripts/setup` may have put it there a moment ago.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

HEADWORKS := target/release/headworks
DEMO      := target/demo.img

.PHONY: help run build check test test-long bench

help:            ## what there is to make
	@awk -F ' *## ' '/^[a-z-]+:.*##/ { sub(/:.*/, "", $$1); printf "  make %-10s %s\n", $$1, $$2 }' Makefile

run: build       ## serve a demo disk of 1 GiB over NBD, in the foreground
	@test -e $(DEMO) || truncate -s 1G $(DEMO)
	@exec $(HEADWORKS) serve $(DEMO) -U target/demo.sock

build:           ## the release binary: target/release/headworks
	@scripts/setup
	@cargo build --release --locked

check:           ## before a commit: format, clippy, unit tests, a minute of simulation
	@scripts/setup test
	@scripts/test check

test:            ## every test: the above, model checks, NBD clients against the real server
	@scripts/setup test
	@scripts/test all

test-long:       ## hours of simulation, deeper model checks, the NBD clients again and again
	@scripts/setup test
	@scripts/test long

bench: build     ## the figures of docs/PERFORMANCE.md, side by side with the peers
	@scripts/setup bench
	@benches/instructions.sh
	@benches/disk-vs-direct.sh
	@benches/nbd-peers.sh
