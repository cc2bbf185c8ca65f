# Thin on purpose: each target is one or two commands that can be typed by hand.

.PHONY: run test verify fix rust

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

rust:
	@command -v cargo >/dev/null 2>&1 || { \
	  echo "Rust is missing: install it from https://rustup.rs (rust-toolchain.toml picks the version), then run make again" >&2; \
	  exit 1; }
