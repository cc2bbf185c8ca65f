# Thin on purpose: each target is one or two commands that can be typed by hand.

.PHONY: run test verify fix fuzz mutants rack plots rust

# Seconds that `make fuzz` gives to each target.
FUZZ_SECONDS ?= 600

# A cluster on this machine, with a demonstration; data in ./data. Ctrl-C stops it.
run: rust
	cargo build --locked --release --package reservoir-cli
	target/release/reservoir up --demo

# Every test. In release, because the simulator's seeds are most of the work.
test: rust
	cargo test --locked --workspace --release

# The gate: reads, never writes sources.
verify: rust
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- --deny warnings
	cargo test --locked --workspace --release
	cargo run --locked --release --package reservoir-cli -- sim check

# What can be put right by machine.
fix: rust
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all

# Small changes planted in protocol and store: which does no test and no seed notice? All of them take hours; docs/mutants.md.
mutants: rust
	cargo build --locked --release --package reservoir-testkit --bin mutants
	target/release/mutants $(MUTANTS)

# What the transports reach over the cables of a rack of network namespaces; needs root. `rack --help` has more.
rack: rust
	cargo build --locked --release --package reservoir-cli --package reservoir-testkit --bins
	target/release/rack bench

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

rust:
	@command -v cargo >/dev/null 2>&1 || { \
	  echo "Rust is missing: install it from https://rustup.rs (rust-toolchain.toml picks the version), then run make again" >&2; \
	  exit 1; }
