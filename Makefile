# Thin on purpose: each target is one or two commands that can be typed by hand.

.PHONY: run test fix fuzz mutants rack plots upgrade soak rust

# What is installed for a build or a test is said; NO_INSTALL=1 forbids it.
export NO_INSTALL
# With the first command of cargo, rustup would fetch the toolchain if it is missing.
ifneq ($(NO_INSTALL),)
export RUSTUP_AUTO_INSTALL := 0
endif
# Where the installer of Rust puts it, also before the shell that runs make knows.
CARGO_HOME := $(or $(CARGO_HOME),$(HOME)/.cargo)
export PATH := $(PATH):$(CARGO_HOME)/bin

# Most tests of clusters wait for most of their time, so on two processors eight of them run at once; four on a disk with little room,
# as each cluster takes up to 400 MB of it, and of a larger disk more.
export RUST_TEST_THREADS ?= $(or $(shell { df -Pk "$${TMPDIR:-/tmp}" | awk 'NR == 2 { print $$4 < 12 * 1024 ^ 2 ? 4 : 8 }'; } 2>/dev/null),8)

# Seconds that `make fuzz` gives to each target.
FUZZ_SECONDS ?= 600

# A cluster on this machine, with a demonstration; data in ./data. Ctrl-C stops it.
run: rust
	cargo build --locked --release --package reservoir-cli
	target/release/reservoir up --demo

# The gate: format, lints, docs and every test. It reads, and never writes sources. In release, because the simulator's seeds
# are most of the work.
test: rust
	@[ -n "$$NO_INSTALL" ] || echo "What tests lack they install: S3 clients into target/clients and, as root, Debian's" \
	  "chromium, iproute2, nftables, postgresql and python3-venv; NO_INSTALL=1 forbids it" >&2
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets --release -- --deny warnings
	RUSTDOCFLAGS="--deny warnings --allow rustdoc::private-intra-doc-links" cargo doc --locked --workspace --no-deps --document-private-items --release
	cargo test --locked --workspace --release

# What can be put right by machine.
fix: rust
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

# Small changes planted in protocol and store: which does no test and no seed notice? All of them take hours; docs/mutants.md.
mutants: rust
	cargo build --locked --release --package reservoir-testkit --bin mutants
	target/release/mutants $(MUTANTS)

# What the transports reach over the cables of a rack of network namespaces; needs root. `rack --help` has more.
rack: rust
	cargo build --locked --release --package reservoir-cli --package reservoir-testkit --bins
	target/release/rack bench

# Whether a running cluster of the binary of an earlier commit becomes one of this one, role by role, under load. Builds both.
BEFORE ?= HEAD~1

upgrade: rust
	git worktree remove --force target/before 2>/dev/null || true
	git worktree add --detach target/before $(BEFORE)
	cargo build --locked --release --package reservoir-cli --manifest-path target/before/Cargo.toml --target-dir target/before-build
	git worktree remove --force target/before
	RESERVOIR_BEFORE=$(CURDIR)/target/before-build/release/reservoir \
	  cargo test --locked --release --package reservoir-cli --test upgrade -- --ignored --nocapture

# Faults of every kind under load, in a random order, for so long; `make test` does it for a minute.
SOAK_SECONDS ?= 1800

soak: rust
	RESERVOIR_SOAK_SECONDS=$(SOAK_SECONDS) \
	  cargo test --locked --release --package reservoir-cli --test soak -- --nocapture

# The plots of docs/, from simulations: some minutes on two cores.
plots: rust
	cargo build --locked --release --package reservoir-cli
	target/release/reservoir sim theory --out target/plots/theory
	target/release/reservoir sim leader --out target/plots/leader
	target/release/reservoir sim reads --seeds 3 --out target/plots/reads
	target/release/reservoir sim paper --only choosy,choosy-spikes --out target/plots/choosy
	for plot in docs/plots/*.svg; do cp target/plots/*/$$(basename $$plot) docs/plots || exit 1; done

# Hostile input. Needs the nightly toolchain, a C++ compiler and cargo-fuzz; CONTRIBUTING.md says how to get them.
fuzz: rust
	cargo +nightly fuzz build
	for target in $$(cargo +nightly fuzz list); do \
	  mkdir -p fuzz/corpus/$$target && \
	  cargo +nightly fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=4096 || exit 1; \
	done

# The version of Rust is the one in rust-toolchain.toml, which rustup installs with the first command of cargo.
INSTALLER := https://sh.rustup.rs

rust:
	@command -v cargo >/dev/null 2>&1 || { \
	  if [ -n "$$NO_INSTALL" ]; then \
	    echo "Rust is missing, and NO_INSTALL forbids to install it: see https://rustup.rs" >&2; exit 1; \
	  fi; \
	  echo "Rust is missing: its installer ($(INSTALLER)) puts it into $(CARGO_HOME) now; NO_INSTALL=1 would forbid it" >&2; \
	  script=$$(mktemp) && curl --proto '=https' --tlsv1.2 --fail --silent --show-error --output "$$script" $(INSTALLER) && \
	  sh "$$script" -y --no-modify-path --profile minimal --default-toolchain none; done=$$?; rm -f "$$script"; \
	  [ $$done = 0 ] || { \
	    echo "Rust could not be installed: see the line above, or https://rustup.rs" >&2; exit 1; \
	  }; \
	}
