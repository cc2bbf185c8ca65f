fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let planted = sim::Planted::ALL.into_iter().find(|p| p.name() == args[0]);
    let (first, count, threads) = (args[1].parse().unwrap(), args[2].parse().unwrap(), args[3].parse().unwrap());
    if threads == 0 { for seed in first..first + count { sim::replay(seed, planted, &mut |line| { println!("{line}"); }); } return; }
    let r = sim::check_seeds(first, count, planted, threads, &|_| ());
    println!("{}: {} failures of {}; events {} puts {} gets {} {:?}", args[0], r.failures.len(), r.seeds, r.events, r.puts, r.gets, r.disks);
    for (s, w) in r.failures.iter().take(6) { println!("  {s}: {}", &w[..w.len().min(400)]); }
}
