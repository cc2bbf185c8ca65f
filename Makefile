# Thin: every target is one or two cargo commands.
.PHONY: run test verify fix

run:
	cargo build --release --locked
	target/release/reservoir up --demo

test:
	cargo test --release --workspace --locked

# Read-only: changes nothing, fails on anything that `make fix` or a person must mend.
verify:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(MAKE) test

fix:
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty
