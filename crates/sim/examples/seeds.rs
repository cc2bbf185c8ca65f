//! Runs the given seeds, up to the first that fails, and prints the digest of each: `seeds SEED…`.
//! `make mutants` drives it.

fn main() -> std::process::ExitCode {
    for word in std::env::args().skip(1) {
        let Ok(seed) = word.parse() else {
            eprintln!("{word} is no seed: give whole numbers");
            return std::process::ExitCode::from(2);
        };
        let outcome = sim::run_seed(seed, None);
        if let Some(why) = outcome.failure {
            println!("{seed} failed: {why}");
            return std::process::ExitCode::FAILURE;
        }
        println!("{seed} {}", outcome.digest);
    }
    std::process::ExitCode::SUCCESS
}
