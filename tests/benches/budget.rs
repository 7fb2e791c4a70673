//! What one run costs, in whole processes, beside two yardsticks run in the same rounds: `bash -c true`, and
//! a node health check of the usual kind in bash (`nhc-style.sh`). Prints exact figures. With `CI=true` it
//! fails where a figure is beyond 1.5 times its budget, or could not be had.
//!
//! `cargo bench --bench budget [-- --rounds N]`. The program is the release build of this package, or the
//! file named by `GPU_REAPER_BIN`.

mod measure;
mod node;

use measure::{Cost, Instructions, Program, installed};
use node::{Load, Node, RUNS_A_DAY, SPACING_MS};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs, io};

/// In CI, on shared machines, a budget is missed only beyond this many times its figure.
const SLACK: f64 = 1.5;

/// Nothing of what is laid out may be pruned before it is measured.
const KEEP_ALL: &str = "history: { keep: 60d, max_size: 2GiB }";
/// After so many runs a laid-out ledger is as one that grew.
const RUNS_UNTIL_PACKED: usize = 64;

/// One line of the report.
struct Figure {
    what: String,
    /// `None`: the tool for it is not installed.
    value: Option<f64>,
    budget: f64,
    unit: &'static str,
}

impl Figure {
    fn new(what: impl Into<String>, value: f64, budget: f64, unit: &'static str) -> Figure {
        Figure { what: what.into(), value: Some(value), budget, unit }
    }

    fn judged(&self) -> &'static str {
        match self.value {
            None => "NOT MEASURED",
            Some(value) if value <= self.budget => "within budget",
            Some(value) if value <= self.budget * SLACK => "over budget, within 1.5 times",
            Some(_) => "OVER",
        }
    }

    fn line(&self) -> String {
        let value = self.value.map_or("-".to_string(), |value| format!("{value:.3}"));
        format!("{:<58} {value:>10} {:<4} budget {:>6} {}", self.what, self.unit, self.budget, self.judged())
    }

    fn misses(&self) -> bool {
        self.value.is_none_or(|value| value > self.budget * SLACK)
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let after = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1));
    let binary =
        PathBuf::from(env::var_os("GPU_REAPER_BIN").unwrap_or(env!("CARGO_BIN_EXE_gpu-reaper-hc").into()));
    if let Some(folder) = after("--lay-out") {
        let runs = after("--runs").and_then(|runs| runs.parse().ok()).unwrap_or(RUNS_A_DAY);
        let load = after("--load").and_then(|word| Load::of(word)).unwrap_or(Load::Busy);
        let node = Node::new(&binary, Path::new(folder), &load.driver(), KEEP_ALL)?;
        return node.with_history(load, runs, unix_secs());
    }
    let rounds = after("--rounds").and_then(|rounds| rounds.parse().ok()).unwrap_or(100);
    let folder = tempfile::Builder::new().prefix("gpu-reaper-budget.").tempdir()?;
    let figures = report(&binary, folder.path(), rounds)?;
    let missed = figures.iter().filter(|figure| figure.misses()).count();
    println!("\n{missed} of {} figures beyond {SLACK} times their budget or not measured", figures.len());
    if missed > 0 && env::var("CI").is_ok_and(|ci| ci == "true") {
        std::process::exit(1);
    }
    Ok(())
}

fn unix_secs() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// The node is laid out by another process: what that needs would be the floor of every resident set here.
fn lay_out(binary: &Path, folder: &Path, load: Load, runs: i64) -> io::Result<Node> {
    let runs = runs.to_string();
    let mut lay = Program::new([env::current_exe()?.as_os_str(), "--lay-out".as_ref(), folder.as_os_str()]);
    lay.argv.extend(["--runs".into(), runs.into(), "--load".into(), load.word().into()]);
    let kept = ["PATH", "GPU_REAPER_BIN"].map(|key| (key, env::var(key).ok()));
    lay.env.extend(kept.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?))));
    lay.must_run()?;
    Ok(Node::at(binary, folder))
}

fn report(binary: &Path, folder: &Path, rounds: usize) -> io::Result<Vec<Figure>> {
    measure::adopt_orphans();
    println!(
        "{} GPUs, one registered job, a ledger of {RUNS_A_DAY} runs; medians of {rounds} interleaved rounds",
        node::GPUS
    );
    println!("program: {}\n", binary.display());
    // As it is installed, by a copy. What a linker leaves lies in the page cache in single pages, and to map those
    // takes a tenth of a run.
    let installed = folder.join("gpu-reaper-hc");
    fs::copy(binary, &installed)?;
    let binary = installed.as_path();
    let day = lay_out(binary, &folder.join("day"), Load::Busy, RUNS_A_DAY)?;
    let ledger_megabytes = fs::metadata(day.ledger()?)?.len() as f64 / 1e6;
    let healthy = day.health_run();
    // What is laid out at once is packed in the next runs, a thousand of them at a time; on a node it is by and by.
    measure::interleaved(&[("", healthy.clone())], RUNS_UNTIL_PACKED)?;
    let mut figures = times(binary, &healthy, rounds)?;
    figures.extend(replay(binary, folder, rounds)?);
    figures.push(growth(binary, folder, rounds)?);
    figures.push(Figure::new("the ledger's file after a day of runs", ledger_megabytes, 4.5, "MB"));
    figures.push(fsyncs(&healthy, folder)?);
    figures.push(instructions(&healthy, folder)?);
    let megabytes = fs::metadata(binary)?.len() as f64 / 1e6;
    figures.push(Figure::new("the program's file", megabytes, 4.5, "MB"));
    println!();
    for figure in &figures {
        println!("{}", figure.line());
    }
    Ok(figures)
}

/// Wall, CPU and memory of everything, in the same rounds.
fn times(binary: &Path, healthy: &Program, rounds: usize) -> io::Result<Vec<Figure>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/benches/nhc-style.sh");
    let programs = [
        ("bash -c true", Program::new(["/bin/bash", "-c", "true"])),
        ("healthy run", healthy.clone()),
        ("--version", Program::new([binary.as_os_str(), "--version".as_ref()])),
        ("nhc-style.sh", Program::new(["/bin/bash".as_ref(), script.as_os_str()])),
    ];
    let costs = measure::interleaved(&programs, rounds)?;
    println!("{:<16} {:>10} {:>10} {:>10}", "", "wall us", "CPU us", "RSS KiB");
    for (name, _) in &programs {
        let cost = costs[name];
        println!("{name:<16} {:>10} {:>10} {:>10}", cost.wall_us, cost.cpu_us, cost.rss_kib);
    }
    println!("(no resident set below {} KiB can be told: that is the bench's own)", measure::own_rss_kib());
    let mut figures = Vec::new();
    for (what, beside, most) in [
        ("healthy run", "bash -c true", 2.5),
        ("healthy run", "nhc-style.sh", 0.15),
        ("--version", "bash -c true", 0.8),
    ] {
        let ratio = |of: fn(&Cost) -> u64| of(&costs[what]) as f64 / of(&costs[beside]) as f64;
        figures.push(Figure::new(format!("{what} / {beside}: wall"), ratio(|c| c.wall_us), most, "x"));
        figures.push(Figure::new(format!("{what} / {beside}: CPU"), ratio(|c| c.cpu_us), most, "x"));
    }
    figures.push(Figure::new(
        "healthy run: resident",
        costs["healthy run"].rss_kib as f64 / 1024.0,
        8.0,
        "MiB",
    ));
    Ok(figures)
}

/// What a history costs that has to be read whole, because nothing in it is work: beyond the same node without a
/// past, in starts of `bash`. And the whole run where the newest look already clears the job.
fn replay(binary: &Path, folder: &Path, rounds: usize) -> io::Result<Vec<Figure>> {
    let four_hours = 4 * 3_600_000 / SPACING_MS;
    let node = |name: &str, load: Load, runs: i64| {
        lay_out(binary, &folder.join(name), load, runs).map(|node| node.health_run())
    };
    let programs = [
        ("bash -c true", Program::new(["/bin/bash", "-c", "true"])),
        ("8 busy, 4 h", node("busy-4h", Load::Busy, four_hours)?),
        ("8 hung, new", node("hung-new", Load::Hung, 2)?),
        ("8 hung, 4 h", node("hung-4h", Load::Hung, four_hours)?),
        ("56 hung, new", node("instances-new", Load::HungInstances, 2)?),
        ("56 hung, 4 h", node("instances-4h", Load::HungInstances, four_hours)?),
    ];
    let costs = measure::interleaved(&programs, rounds)?;
    println!();
    for (name, _) in &programs {
        let cost = costs[name];
        println!("{name:<16} {:>10} {:>10} {:>10}", cost.wall_us, cost.cpu_us, cost.rss_kib);
    }
    let cpu = |name: &str| costs[name].cpu_us as f64 / costs["bash -c true"].cpu_us as f64;
    Ok(vec![
        Figure::new("8 GPUs busy, 4 h of history / bash -c true: CPU", cpu("8 busy, 4 h"), 3.0, "x"),
        Figure::new(
            "8 GPUs hung for 4 h, the history alone",
            cpu("8 hung, 4 h") - cpu("8 hung, new"),
            2.0,
            "x",
        ),
        Figure::new(
            "56 instances hung for 4 h, the history alone",
            cpu("56 hung, 4 h") - cpu("56 hung, new"),
            12.0,
            "x",
        ),
    ])
}

/// The same run on a ledger a hundred times as long: append and prune must not feel it.
fn growth(binary: &Path, folder: &Path, rounds: usize) -> io::Result<Figure> {
    let node = |samples: i64, name: &str| {
        lay_out(binary, &folder.join(name), Load::Busy, samples / node::GPUS as i64)
    };
    let (short, long) = (node(10_000, "short")?, node(1_000_000, "long")?);
    let costs = measure::interleaved(&[("short", short.health_run()), ("long", long.health_run())], rounds)?;
    let ratio = costs["long"].cpu_us as f64 / costs["short"].cpu_us as f64;
    Ok(Figure::new("healthy run: CPU at 1 M samples / at 10 k", ratio, 1.3, "x"))
}

fn fsyncs(healthy: &Program, folder: &Path) -> io::Result<Figure> {
    let counted = installed("strace").then(|| measure::fsyncs(healthy, folder)).transpose()?;
    let value = counted.map(|count| count as f64);
    Ok(Figure { what: "healthy run: fsyncs".into(), value, budget: 0.0, unit: "" })
}

fn instructions(healthy: &Program, folder: &Path) -> io::Result<Figure> {
    let counted = installed("valgrind").then(|| measure::instructions(healthy, folder)).transpose()?;
    if let Some(Instructions { by_object, stand_in }) = &counted {
        println!("\ninstructions by whose code they are, run and worker:");
        for (object, count) in by_object {
            println!("{object:<32} {count:>12}");
        }
        println!("{:<32} {stand_in:>12}", "the stand-in with what it calls");
    }
    let value = counted.map(|counted| counted.ours() as f64 / 1e6);
    Ok(Figure {
        what: "healthy run: instructions without the stand-in's".into(),
        value,
        budget: 5.5,
        unit: "M",
    })
}
