//! The door: reads the clock once, finds out what is asked, and lets the story begin. Cheap answers come first, the
//! world later; a hook never exits non-zero, whatever is broken.
//!
//! It is the C library's `main` and not std's, and holds the unwinder in itself. What std does before `main`
//! (it reads /proc/self/maps to word a stack overflow) and loading libgcc_s cost each a tenth of
//! `bash -c true`, in every run on every node. What of std's start is needed is done here.
#![no_main]

use clap::Parser;
use gpu_reaper_hc::backtest::{self, Report};
use gpu_reaper_hc::cases::{self, Form};
use gpu_reaper_hc::cli::out::{complain, lines, page, say, something_is_unsaid};
use gpu_reaper_hc::cli::{Cli, Command, Common, ConfigCommand};
use gpu_reaper_hc::config::{self, Config, ConfigError, GpuSourceKind, SlurmSource};
use gpu_reaper_hc::epilog::{here::Here, verify::Sight};
use gpu_reaper_hc::explain::elsewhere::Refusal;
use gpu_reaper_hc::explain::{self, Asked};
use gpu_reaper_hc::gpu::driver;
use gpu_reaper_hc::gpu::worker::{Plan, SourcePlan};
use gpu_reaper_hc::keep::{Order, Wish};
use gpu_reaper_hc::ledger::{Ledger, LedgerError};
use gpu_reaper_hc::model::Now;
use gpu_reaper_hc::place::Place;
use gpu_reaper_hc::policy::Auto;
use gpu_reaper_hc::prolog::Done;
use gpu_reaper_hc::run::{self, Ended, Setting, machine::Machine};
use gpu_reaper_hc::screen::json_text;
use gpu_reaper_hc::slurm::{RestSite, Site, Slurm, is_one_job};
use gpu_reaper_hc::units::WallMs;
use gpu_reaper_hc::{
    ack, deliver, demo, doctor, epilog, host, keep, policy, prolog, release, scenarios, status,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// By so much the heap grows at once; it is paid for only as it is used.
const HEAP_STEP_BYTES: libc::c_int = 1 << 20;

#[link(name = "gcc_eh", kind = "static")]
unsafe extern "C" {}

/// What the C library starts. Ends through std, which writes out what is still buffered.
#[unsafe(no_mangle)]
extern "C" fn main(_count: libc::c_int, _arguments: *const *const libc::c_char) -> libc::c_int {
    if !hold_standard_descriptors() {
        // EX_OSERR, and not 1, by which an Epilog would have its node drained.
        return 71;
    }
    // A reader that went away is an error to be looked at, not a death. And memory once got is kept: a heap that
    // shrinks and grows with each statement pays for its pages every time.
    // SAFETY: sets a disposition and three numbers, before there is a second thread.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_STEP_BYTES * 64);
        libc::mallopt(libc::M_TOP_PAD, HEAP_STEP_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, HEAP_STEP_BYTES);
    }
    std::process::exit(i32::from(answer()))
}

/// No file of ours may become standard error: a line for people would be written into it.
fn hold_standard_descriptors() -> bool {
    // SAFETY: plain system calls; what is opened here is kept until the end.
    (0..=2).all(|fd| unsafe {
        libc::fcntl(fd, libc::F_GETFD) != -1 || libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) == fd
    })
}

/// Does what is asked and gives the exit status.
fn answer() -> u8 {
    let started = Instant::now();
    let cli = Cli::parse();
    match obey(&cli, started) {
        // A deed that was done stays done, whether its words arrived or not: nobody is to repeat it.
        _ if something_is_unsaid() && !cli.does_something() => UNREADABLE,
        status => status,
    }
}

fn obey(cli: &Cli, started: Instant) -> u8 {
    if cli.common.json && cli.command.as_ref().is_some_and(Command::prints_no_json) {
        complain("`--json`: ack, keep, release, config and demo print no JSON; nothing was done");
        return 2;
    }
    if cli.command.is_some() && cli.explain.is_some() {
        complain("`--explain JOBID` stands alone, beside no command; nothing was done");
        return 2;
    }
    match (&cli.command, &cli.explain) {
        (Some(Command::Explain { job }), _) | (None, Some(job)) => explain_job(&cli.common, job),
        (Some(Command::Keep { job, length, reason, .. }), _) => {
            let wish = length.map_or(Wish::End, Wish::For);
            keep_job(&cli.common, job, wish, reason.as_deref().unwrap_or("ended"))
        }
        (Some(Command::Release), _) => release_node(&cli.common),
        (Some(Command::Ack { fault }), _) => acknowledge(&cli.common, fault.as_deref()),
        (Some(Command::Status), _) => show_status(&cli.common),
        (Some(Command::Cases { csv, since }), _) => list_cases(&cli.common, *csv, *since),
        (Some(Command::Doctor), _) => examine_site(&cli.common),
        (Some(Command::Config { what }), _) => configuration(&cli.common, *what),
        (Some(Command::Backtest { trace, every, job_start }), _) => {
            back_test(&cli.common, trace, *every, *job_start)
        }
        (Some(Command::Scenarios), _) => play_scenarios(&cli.common),
        (Some(Command::Demo), _) => show_demo(),
        (Some(Command::Prolog), _) => hook(&cli.common, "prolog", |c, p, _, now| {
            prolog::run(p, run::opening(c, prolog::LEDGER_WAIT), now, &prolog::process_env)
        }),
        (Some(Command::Epilog), _) => hook(&cli.common, "epilog", |config, place, slurm, now| {
            let asked = Asked { config, place, now, slurm };
            epilog::run(&asked, &prolog::process_env, &mut |known| sight(config, place, known))
        }),
        (None, None) => health_check(&cli.common, started),
    }
}

fn config_file(common: &Common) -> Option<PathBuf> {
    let by_environment =
        || std::env::var_os("GPU_REAPER_CONFIG").filter(|v| !v.is_empty()).map(PathBuf::from);
    common.config.clone().or_else(by_environment)
}

fn load(common: &Common) -> Result<Config, Vec<ConfigError>> {
    config::load(config_file(common).as_deref())
}

/// The configuration, or its errors on standard error with what was done instead.
fn load_or_complain(common: &Common, instead: &str) -> Option<Config> {
    or_complain(load(common), instead)
}

fn or_complain(loaded: Result<Config, Vec<ConfigError>>, instead: &str) -> Option<Config> {
    match loaded {
        Ok(config) => Some(config),
        Err(errors) => {
            for error in &errors {
                complain(&format!("{error}; {instead}"));
            }
            None
        }
    }
}

fn place(common: &Common, config: &Config) -> Result<Place, String> {
    host::files::refuse_shared(&config.state_dir)?;
    place_anywhere(common, config)
}

/// The same for who says himself what is wrong with where it lies.
fn place_anywhere(common: &Common, config: &Config) -> Result<Place, String> {
    let by_environment = std::env::var("SLURMD_NODENAME").ok().filter(|n| !n.is_empty());
    let said = common.node.clone().or(by_environment);
    Place::find(&config.state_dir, said.as_deref(), host::short_hostname().ok())
}

fn slurm(config: &Config, place: &Place) -> Slurm {
    slurm_at(site(config), config, place)
}

/// Slurm as the configuration says that it is asked.
fn slurm_at(site: Site, config: &Config, place: &Place) -> Slurm {
    let (limit, slurm) = (site.limit, Slurm::new(place.node.clone(), site));
    let said = &config.slurm;
    match &said.rest_url {
        Some(url) if said.source == SlurmSource::Rest => slurm.reading_from(RestSite {
            url: url.clone(),
            version: said.rest_version,
            username: said.username.clone(),
            token_file: said.token_file.clone(),
            limit,
        }),
        _ => slurm,
    }
}

fn site(config: &Config) -> Site {
    Site::here(config.slurm.bin_dir.clone(), config.slurm.conf.clone())
}

/// One health-check run: 0 = it ran to its end, whatever was absent; 1 = it could not do its work.
fn health_check(common: &Common, started: Instant) -> u8 {
    let Some(config) = load_or_complain(common, "nothing was judged or done") else {
        return 1;
    };
    let place = match place(common, &config) {
        Ok(place) => place,
        Err(why) => {
            complain(&format!("{why}; nothing was judged or done"));
            return 1;
        }
    };
    if nothing_to_look_at(&config, &place) {
        return 0;
    }
    host::alarm(config.deadline);
    let now = match host::now() {
        Ok(now) => now,
        Err(why) => {
            complain(&format!("{why}; nothing was judged or done"));
            return 1;
        }
    };
    deliver::journal::init(&place.node);
    let slurm = slurm(&config, &place);
    let younger = |ms: i64| host::started_by_fresh_slurmd(&now, ms).measured() == Some(&true);
    let setting = Setting {
        config: &config,
        place: &place,
        now: &now,
        slurm: &slurm,
        slurmd_is_younger: &younger,
        interval_ms: None,
        until: started + config.deadline,
    };
    match look_and_run(&setting) {
        Ok(Ended::Ran(line)) => {
            tracing::info!("{line}");
            0
        }
        Ok(Ended::Overlapped) => 0,
        Err(why) => {
            complain(&why);
            1
        }
    }
}

fn look_and_run(setting: &Setting) -> Result<Ended, String> {
    let gpu = &setting.config.gpu;
    let Some(source) = source(gpu) else {
        let mut eyes = scenarios::replay::Replay::open(gpu.scenario.as_deref())?;
        return run::run_last(setting, &mut eyes).map_err(|t| t.to_string());
    };
    let deadline = match gpu.deadline {
        Auto::Set(deadline) => deadline,
        Auto::Auto => driver::default_deadline(),
    };
    let plan = Plan { source, states: false, deadline, lock: setting.place.dir.join("probe.lock") };
    let mut eyes = Machine::new(plan, setting.place.node.clone());
    run::run_last(setting, &mut eyes).map_err(|t| t.to_string())
}

/// How the GPUs are asked; `None`: they are a scenario's.
fn source(gpu: &config::Gpu) -> Option<SourcePlan> {
    match gpu.source {
        GpuSourceKind::Simulator => None,
        GpuSourceKind::Nvml => Some(SourcePlan::Nvml { library: gpu.library.clone(), gpm: gpu.gpm }),
        GpuSourceKind::NvidiaSmi => Some(SourcePlan::NvidiaSmi { program: nvidia_smi() }),
    }
}

/// What an Epilog looks with.
fn sight<'a>(config: &Config, place: &Place, persistent: bool) -> Result<Box<dyn Sight + 'a>, String> {
    let gpu = &config.gpu;
    match source(gpu) {
        Some(source) => Ok(Box::new(Here::new(place, gpu, source, persistent || driver::persistenced()))),
        None => Ok(Box::new(scenarios::replay::Replay::open(gpu.scenario.as_deref())?.afterwards())),
    }
}

/// Where nvidia-smi lies; slurmd gives no PATH.
fn nvidia_smi() -> PathBuf {
    let places = ["/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/opt/bin/nvidia-smi"];
    let found = places.iter().map(PathBuf::from).find(|p| p.exists());
    found.unwrap_or_else(|| PathBuf::from(places[0]))
}

/// HealthCheckProgram is cluster-wide: a node without an NVIDIA device, without anything registered and without a
/// source that was named is left at once, nothing opened.
fn nothing_to_look_at(config: &Config, place: &Place) -> bool {
    let named = config.gpu.library.is_some() || config.gpu.source != GpuSourceKind::Nvml;
    !named && !place.has_ledger() && !driver::nvidia_on_pci_bus()
}

/// A Prolog has ended by then: it waits for the ledger (`prolog::LEDGER_WAIT`) and writes a row.
const HOOK_TAKES: Duration = Duration::from_secs(5);
/// An Epilog has ended by then, beside its looks: it waits for the ledger twice, and drains.
const EPILOG_TAKES: Duration = Duration::from_secs(40);

/// What an Epilog ends with that could not make the drain for what its job left; the hook makes 1 of it. Nothing else
/// ends with it: a loader that misses a library's version ends with 1.
const DRAIN_FAILED: u8 = 75;

/// Prolog and Epilog: one line of trouble at most, one for each GPU that is not clean, and exit status 0; but for
/// [`DRAIN_FAILED`].
fn hook(
    common: &Common,
    which: &str,
    act: impl FnOnce(&Config, &Place, &Slurm, &Now) -> Result<Done, String>,
) -> u8 {
    // SQLite's waits are bounded; a disk or a file system that stalls is not.
    host::hook_alarm(HOOK_TAKES);
    // Registering and clearing hurt nobody: under the defaults they still reach the usual state folder.
    let (config, mut trouble) = match load(common) {
        Ok(config) => (config, Vec::new()),
        Err(errors) => (config::defaults(), vec![in_short(&errors), "the defaults were used".to_owned()]),
    };
    if which == "epilog" {
        host::hook_alarm(config.epilog.verify + EPILOG_TAKES);
    }
    let done = place(common, &config).and_then(|place| {
        // A CPU node's CPU job: nothing to register, no ledger to begin.
        if prolog::process_env("SLURM_JOB_GPUS").is_none() && nothing_to_look_at(&config, &place) {
            let words = |job| format!("job {job} holds no GPU, nor has this node one");
            return prolog::job_id(&prolog::process_env).map(|job| Done::quietly(words(job), vec![]));
        }
        let now = host::now()?;
        act(&config, &place, &slurm(&config, &place), &now)
    });
    let (mut lines, mut status) = (Vec::new(), 0);
    match done {
        Ok(Done { words, notes, found, drain_failed }) => {
            status = if drain_failed { DRAIN_FAILED } else { 0 };
            trouble.extend(notes);
            if !trouble.is_empty() {
                trouble.push(words);
            }
            lines = found;
        }
        Err(why) => trouble.push(why),
    }
    if !trouble.is_empty() {
        lines.insert(0, trouble.join("; "));
    }
    let lines: Vec<String> = lines.iter().map(|line| format!("{which}: {line}")).collect();
    lines.iter().for_each(|line| complain(line));
    // slurmd does not log what a hook that ends well has said.
    deliver::journal::tell(&lines);
    status
}

/// The first error of a configuration, and how many there are: a hook has one line.
fn in_short(errors: &[ConfigError]) -> String {
    let first = errors.first().map_or("the configuration is unusable".to_owned(), |e| e.to_string());
    match errors.len() {
        0 | 1 => first,
        n => format!("{first}; {} more errors", n - 1),
    }
}

/// What only reads the ledger ends with where that cannot be read; and any command whose words did not arrive.
const UNREADABLE: u8 = 17;

fn explain_job(common: &Common, job: &str) -> u8 {
    if !is_one_job(job) {
        let expected = "expected one as Slurm prints it: 130, 123_4, 200+1, or a SLUID";
        complain(&format!("`{}` is no job id; {expected}", job.escape_debug()));
        return 2;
    }
    let refuse = |refusal: Refusal| {
        if common.json {
            say(&json_text(&refusal.json_of(job)));
        }
        complain(&format!("{}; nothing was explained", refusal.words));
        UNREADABLE
    };
    let Some(config) = load_or_complain(common, "nothing was explained") else {
        if common.json {
            say(&json_text(&Refusal::of_configuration().json_of(job)));
        }
        return UNREADABLE;
    };
    let told = place(common, &config).map_err(Refusal::other).and_then(|place| {
        let (now, ledger) = (host::now().map_err(Refusal::other)?, to_read(&place)?);
        let refusal = |e: LedgerError| Refusal::of(&e, &place);
        let slurm = slurm(&config, &place);
        let asked = Asked { config: &config, place: &place, now: &now, slurm: &slurm };
        let mut answer = explain::explain(&asked, &ledger, job).map_err(refusal)?;
        let patient = Site { limit: explain::written::PATIENCE, ..site(&config) };
        explain::written::add(&mut answer, &asked, &slurm_at(patient, &config, &place));
        Ok(answer)
    });
    match told {
        Ok(answer) => {
            match common.json {
                true => say(&json_text(&explain::json::answer(&answer, job))),
                false => say(&explain::text::answer(&answer, job, &page())),
            }
            answer.exit_status()
        }
        Err(refusal) => refuse(refusal),
    }
}

/// The node's ledger for who only reads it, or why not, and what to do.
fn to_read(place: &Place) -> Result<Ledger, Refusal> {
    if !place.has_ledger() {
        return Err(Refusal::no_ledger(place));
    }
    let opened = Ledger::open_read_only(&place.dir, Duration::from_secs(2));
    opened.map_err(|e| Refusal::of(&e, place))
}

fn show_status(common: &Common) -> u8 {
    let Some(config) = load_or_complain(common, "nothing was shown") else {
        if common.json {
            say(&json_text(&Refusal::of_configuration().json()));
        }
        return UNREADABLE;
    };
    let told = place(common, &config).map_err(Refusal::other).and_then(|place| {
        let (now, ledger) = (host::now().map_err(Refusal::other)?, to_read(&place)?);
        let slurm = slurm(&config, &place);
        let asked = Asked { config: &config, place: &place, now: &now, slurm: &slurm };
        status::status(&asked, &ledger).map_err(|e| Refusal::of(&e, &place))
    });
    if let (Err(refusal), true) = (&told, common.json) {
        say(&json_text(&refusal.json()));
    }
    let told = told.map(|told| match common.json {
        true => json_text(&status::json::page(&told)),
        false => status::page(&told, &page()),
    });
    shown(told.map_err(|refusal| refusal.words))
}

fn list_cases(common: &Common, csv: bool, since: Option<Duration>) -> u8 {
    if csv && common.json {
        complain("`--csv` and `--json`: one of them; nothing was listed");
        return 2;
    }
    let Some(config) = load_or_complain(common, "nothing was listed") else {
        return UNREADABLE;
    };
    let listed = place(common, &config).and_then(|place| {
        let (now, ledger) = (host::now()?.wall, to_read(&place).map_err(|refusal| refusal.words)?);
        let from = since.map(|since| WallMs(now.0.saturating_sub(since.as_millis() as i64)));
        let keep_ms = config.history.case_files.as_millis() as i64;
        cases::kept(&ledger, from, keep_ms, now).map_err(|e| e.to_string())
    });
    let form = match (csv, common.json) {
        (true, _) => Form::Csv,
        (_, true) => Form::Json,
        _ => Form::Table(lines()),
    };
    shown(listed.map(|kept| cases::print(&kept, form)))
}

/// What a command that only reads the ledger has to say: 0, or its one line of trouble: 17.
fn shown(told: Result<String, String>) -> u8 {
    if print_or_complain(told) == 0 { 0 } else { UNREADABLE }
}

fn keep_job(common: &Common, id: &str, wish: Wish, reason: &str) -> u8 {
    let Some(config) = load_or_complain(common, "nothing was written") else {
        return 1;
    };
    let told = place(common, &config).and_then(|place| {
        let slurm = slurm(&config, &place);
        let (by, reason, now) = (who(), reason.to_owned(), host::now()?.wall);
        let find = |id: &str| slurm.job_named(id);
        keep::keep(&Order { id, wish, by, reason, now }, &keep::Desk { slurm: &slurm, find: &find })
    });
    print_or_complain(told)
}

/// Whom a keep names: the person behind sudo, else this shell's, else a number.
fn who() -> String {
    let said = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(prolog::process_env);
    // SAFETY: asks for a number and cannot fail.
    let uid = unsafe { libc::getuid() };
    let by_number = || if uid == 0 { "root".to_owned() } else { format!("uid-{uid}") };
    policy::keep::name(&said.unwrap_or_else(by_number))
}

fn release_node(common: &Common) -> u8 {
    let Some(config) = load_or_complain(common, "nothing was lifted") else {
        return 1;
    };
    let told = place(common, &config).and_then(|place| {
        let (now, slurm) = (host::now()?, slurm(&config, &place));
        let ledger = place.has_ledger().then(|| {
            let opening = run::opening(&config, Duration::from_secs(2));
            Ledger::open(&place.dir, &place.node, &now, opening)
                .inspect_err(|e| complain(&format!("{e}; it is not told of the release")))
        });
        let ledger = ledger.and_then(Result::ok);
        release::release(release::Site { node: &place.node, slurm: &slurm, ledger, now: &now })
    });
    print_or_complain(told)
}

fn acknowledge(common: &Common, fault: Option<&str>) -> u8 {
    let Some(config) = load_or_complain(common, "nothing was acknowledged") else {
        return 1;
    };
    let told = place(common, &config).and_then(|place| {
        let now = host::now()?;
        if !place.has_ledger() {
            return Err(format!("{}; nothing was acknowledged", place.no_ledger()));
        }
        let opening = run::opening(&config, Duration::from_secs(2));
        let mut ledger = Ledger::open(&place.dir, &place.node, &now, opening)
            .map_err(|e| format!("{e}; nothing was acknowledged"))?;
        ack::ack(&mut ledger, fault, &who(), &now)
    });
    print_or_complain(told)
}

/// What a command has to say: 0, or its one line of trouble: 1.
fn print_or_complain(told: Result<String, String>) -> u8 {
    match told {
        Ok(words) => {
            say(&words);
            0
        }
        Err(why) => {
            complain(&why);
            1
        }
    }
}

/// Says how the site stands: 0 all ok, 1 warnings, 2 faults. A configuration with errors is one of them.
fn examine_site(common: &Common) -> u8 {
    const NOT_LOOKED_AT: u8 = 2;
    let file = config_file(common).unwrap_or_else(|| PathBuf::from(config::DEFAULT_FILE));
    let (config, errors) = match load(common) {
        Ok(config) => (config, vec![]),
        Err(errors) => (config::defaults(), errors),
    };
    let found = place_anywhere(common, &config).and_then(|place| {
        let now = host::now()?;
        let asked =
            doctor::Asked { config: &config, errors: &errors, config_file: &file, place: &place, now: &now };
        Ok(doctor::doctor(&asked))
    });
    match found {
        Ok(report) => {
            say(&if common.json { json_text(&report.json()) } else { report.text(&lines()) });
            report.exit_status()
        }
        Err(why) => {
            complain(&format!("doctor: {why}; nothing was looked at"));
            NOT_LOOKED_AT
        }
    }
}

fn configuration(common: &Common, what: ConfigCommand) -> u8 {
    if what == ConfigCommand::Example {
        say(config::example());
        return 0;
    }
    match load(common) {
        Ok(config) => {
            if what == ConfigCommand::Show {
                say(&config::show(&config));
            } else {
                for note in &config.notes {
                    say(&format!("note: {note}\n"));
                }
                say(&format!("ok: {}\n", config::origin(&config)));
            }
            0
        }
        Err(errors) => {
            for error in &errors {
                complain(&error.to_string());
            }
            1
        }
    }
}

fn back_test(common: &Common, files: &[PathBuf], every: Duration, began_before: Duration) -> u8 {
    let draft = config::load_draft(config_file(common).as_deref());
    let Some(config) = or_complain(draft, "nothing was judged") else {
        return 1;
    };
    let told = |report: &Report| say(&if common.json { report.json() } else { report.text() });
    if files.is_empty() {
        let kept = place(common, &config).and_then(|place| match place.has_ledger() {
            true => backtest::kept::ledger(&place.dir, &config).map_err(|e| e.to_string()),
            false => Err(place.no_ledger()),
        });
        return match kept {
            Ok(reports) => {
                reports.iter().for_each(told);
                if reports.is_empty() {
                    complain("backtest: the ledger holds no sample of any job; nothing was judged");
                }
                0
            }
            Err(why) => {
                complain(&format!("backtest: {why}; nothing was judged"));
                1
            }
        };
    }
    let (every_ms, began_before_ms) = (every.as_millis() as i64, began_before.as_millis() as i64);
    let setting = backtest::Setting { config: &config, every_ms, began_before_ms };
    let mut status = 0;
    for file in files {
        match backtest::trace(file, &setting) {
            Ok(report) => told(&report),
            Err(why) => {
                complain(&why);
                status = 1;
            }
        }
    }
    status
}

fn play_scenarios(common: &Common) -> u8 {
    host::when_interrupted(scenarios::stage::sweep);
    if host::terminal_columns().is_some() {
        say("The scenarios play, for about a minute.\n\n");
    }
    match scenarios::play_all() {
        Ok(verdicts) => {
            if common.json {
                say(&json_text(&scenarios::json(&verdicts)));
            } else {
                say(&scenarios::table(&verdicts, &page()));
            }
            u8::from(verdicts.iter().any(|v| !v.differs.is_empty()))
        }
        Err(why) => {
            complain(&why);
            1
        }
    }
}

fn show_demo() -> u8 {
    host::when_interrupted(scenarios::stage::sweep);
    let beat = if host::terminal_columns().is_some() { demo::BEAT } else { Duration::ZERO };
    match demo::play(&page(), beat, &mut |text| say(text)) {
        Ok(()) => 0,
        Err(why) => {
            complain(&why);
            1
        }
    }
}
