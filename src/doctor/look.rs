//! What a look at the site saw, read once and before anything is said of it. Each part is bounded: Slurm's commands by
//! their limit, the rest by a process of its own that is left where it hangs.

use super::daemon::{self, Slurmd};
use super::metrics::Textfile;
use super::scripts::{Matched, SCRIPT_BYTES, Script, matched};
use crate::config::{Config, ConfigError, SlurmSource};
use crate::deliver::{exec, journal, slack};
use crate::gpu::driver::{self, Card};
use crate::host::files::{self, Disk, FileFacts, Look};
use crate::host::{Proc, aside};
use crate::ledger::{Ledger, Remembered};
use crate::lock::{self, Before, Last};
use crate::model::{Cadence, Now};
use crate::place::Place;
use crate::reading::Reading;
use crate::slurm::command::{Program, Site};
use crate::slurm::conf::Conf;
use crate::slurm::shown::{Shown, ShownNode};
use crate::slurm::{Answer, NoAnswer, Slurm};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long each part of the look may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long one of Slurm's commands may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(6);
/// Where slurmd and the commands look where nobody says where: the usual default, and a configless node's copy.
pub const DEFAULT_CONFS: [&str; 2] = ["/etc/slurm/slurm.conf", CONFIGLESS];
/// A configless node's copy.
pub const CONFIGLESS: &str = "/run/slurm/conf/slurm.conf";
/// Where LBNL NHC, and what it reads, lies.
const NHC_PROGRAMS: [&str; 4] = ["/usr/sbin/nhc", "/usr/local/sbin/nhc", "/usr/bin/nhc", "/opt/nhc/sbin/nhc"];
const NHC_TEXTS: [&str; 4] =
    ["/etc/nhc/nhc.conf", "/etc/sysconfig/nhc", "/etc/default/nhc", "/usr/local/etc/nhc/nhc.conf"];
const NHC_HELPERS: [&str; 3] = [
    "/usr/libexec/nhc/node-mark-online",
    "/usr/lib/nhc/node-mark-online",
    "/usr/local/libexec/nhc/node-mark-online",
];
/// Where cron's tables lie.
const CRONS: [&str; 4] =
    ["/etc/crontab", "/etc/cron.d/*", "/var/spool/cron/root", "/var/spool/cron/crontabs/root"];

/// What doctor is given.
pub struct Asked<'a> {
    /// The configuration, or defaults where it has errors.
    pub config: &'a Config,
    /// Its errors.
    pub errors: &'a [ConfigError],
    /// The file that it is read from, there or not.
    pub config_file: &'a Path,
    /// This node.
    pub place: &'a Place,
    /// This moment.
    pub now: &'a Now,
}

/// Everything that was seen.
#[derive(Clone, Debug)]
pub struct Found {
    /// The node's name.
    pub node: String,
    /// The configuration, or defaults where it has errors.
    pub config: Config,
    /// Its errors.
    pub errors: Vec<ConfigError>,
    /// Its file.
    pub config_file: PathBuf,
    /// Who could change that file.
    pub config_changeable: Look<Option<String>>,
    /// This program.
    pub us: PathBuf,
    /// The same as a file.
    pub us_facts: Look<FileFacts>,
    /// Whether root looks.
    pub root: bool,
    /// The daemon.
    pub slurmd: Slurmd,
    /// Slurm's files.
    pub confs: Confs,
    /// What slurmctld works by.
    pub shown: Answer<Shown>,
    /// What slurmctld knows of this node.
    pub shown_node: Answer<ShownNode>,
    /// Slurm's commands: where each lies, or why root does not run it.
    pub commands: Vec<(&'static str, Result<PathBuf, String>)>,
    /// Which Slurm they are.
    pub release: Answer<(u16, u16)>,
    /// What stands in HealthCheckProgram.
    pub program: Option<Script>,
    /// The files of each Prolog.
    pub prolog: Vec<Matched>,
    /// The files of each Epilog.
    pub epilog: Vec<Matched>,
    /// The GPUs; `None`: no answer came.
    pub gpus: Option<Gpus>,
    /// The state folder; `None`: no answer came.
    pub state: Option<State>,
    /// Others that may lift a drain; `None`: no answer came.
    pub others: Option<Others>,
    /// The token's file, where one is used.
    pub token: Option<(PathBuf, Look<FileFacts>)>,
    /// Each channel that is configured: its key, what it names, and what is wrong with that.
    pub channels: Vec<Channel>,
    /// Whether journald listens.
    pub journal: bool,
    /// The file for Prometheus; `None`: none is named, or no answer came.
    pub textfile: Option<Textfile>,
}

/// A channel of messages, looked at and not used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Channel {
    /// Its key in the configuration.
    pub key: String,
    /// The file that it names.
    pub file: PathBuf,
    /// Whether it is as a run needs it; else what is wrong, which never holds an address.
    pub sound: Result<(), String>,
}

/// A slurm.conf by name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Named {
    /// Its name.
    pub path: PathBuf,
    /// The file.
    pub facts: Look<FileFacts>,
    /// What it says.
    pub conf: Look<Conf>,
}

impl Named {
    fn look(path: &Path) -> Named {
        Named { path: path.to_owned(), facts: files::facts(path), conf: Look::of(Conf::read(path)) }
    }

    /// Whether both are one file.
    pub fn is_same_as(&self, other: &Named) -> bool {
        match (self.facts.is(), other.facts.is()) {
            (Some(one), Some(two)) => one.id == two.id,
            _ => self.path == other.path,
        }
    }
}

/// Slurm's files on this node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Confs {
    /// What slurmd was told to read: by `-f`, or by its SLURM_CONF.
    pub told: Option<Named>,
    /// `slurm.conf` of the configuration.
    pub key: Option<Named>,
    /// What the commands find by themselves.
    pub default: Option<Named>,
    /// The one that is believed: what slurmd reads, as far as that is known. `None`: there is none.
    pub used: Option<Named>,
    /// cgroup.conf beside it.
    pub cgroup: Look<Conf>,
    /// gres.conf beside it: its name and text.
    pub gres: Look<(PathBuf, String)>,
}

impl Confs {
    /// What the believed slurm.conf says, or why that is not known.
    pub fn conf(&self) -> Result<&Conf, String> {
        match &self.used {
            None => Err("no slurm.conf was found".to_owned()),
            Some(Named { conf: Look::Is(conf), .. }) => Ok(conf),
            Some(Named { path, conf: Look::NotThere, .. }) => {
                Err(format!("`{}` does not exist", path.display()))
            }
            Some(Named { path, conf: Look::Unknown(why), .. }) => Err(format!("`{}`: {why}", path.display())),
        }
    }
}

/// The GPUs, without asking the driver's library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gpus {
    /// Whether a device sits on the bus.
    pub on_bus: bool,
    /// Whether the kernel module is loaded.
    pub loaded: bool,
    /// The driver's own files; `None`: one could not be read.
    pub cards: Option<Vec<Card>>,
    /// Whether a card is cut into MIG instances.
    pub cut: bool,
    /// Whether nvidia-persistenced runs.
    pub persistenced: bool,
}

/// The state folder and what lies there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The node's folder, or the nearest above it that exists.
    pub folder: PathBuf,
    /// Whether that is the node's own.
    pub made: bool,
    /// What is there is a folder.
    pub is_folder: bool,
    /// Who could change it.
    pub changeable: Look<Option<String>>,
    /// The disk.
    pub disk: Look<Disk>,
    /// Bytes that the ledger has already.
    pub ledger_bytes: u64,
    /// The last run.
    pub runs: Runs,
}

/// What the ledger and the lock file say of the runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Runs {
    /// There is no ledger: none has ever run.
    None,
    /// It could not be read.
    Unknown(String),
    /// It was read.
    Seen {
        /// Milliseconds since the newest run of this boot; `None`: there was none.
        newest_ms: Option<i64>,
        /// How often they come, once that is known.
        cadence: Option<(i64, i64)>,
        /// The phase in which the last one was killed.
        killed_in: Option<String>,
        /// Whether it left something amiss.
        amiss: bool,
        /// Whether it goes on now.
        running: bool,
        /// Whether persistence mode was on when a run last read it.
        persistent: bool,
    },
}

/// Others that may lift a drain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Others {
    /// LBNL NHC's program.
    pub nhc: Option<PathBuf>,
    /// Its configuration, where there is one.
    pub nhc_texts: Vec<(PathBuf, Look<String>)>,
    /// What it runs to bring a node back.
    pub nhc_helper: Option<(PathBuf, Look<String>)>,
    /// cron's tables.
    pub crons: Vec<(PathBuf, Look<String>)>,
}

impl Others {
    /// NHC's checks.
    pub fn nhc_confs(&self) -> impl Iterator<Item = (&Path, &Look<String>)> {
        self.nhc_files().filter(|(path, _)| path.ends_with("nhc.conf"))
    }

    /// What NHC reads before them, as a shell does.
    pub fn nhc_settings(&self) -> impl Iterator<Item = (&Path, &Look<String>)> {
        self.nhc_files().filter(|(path, _)| !path.ends_with("nhc.conf"))
    }

    fn nhc_files(&self) -> impl Iterator<Item = (&Path, &Look<String>)> {
        self.nhc_texts.iter().map(|(path, text)| (path.as_path(), text))
    }
}

/// Looks at everything.
pub fn look(asked: &Asked) -> Found {
    let Asked { config, place, .. } = *asked;
    // As slurmd would: without a PATH and without a SLURM_CONF, whoever calls.
    let conf = config.slurm.conf.clone();
    let site = Site { bin_dir: config.slurm.bin_dir.clone(), conf, path: None, limit: COMMAND_LIMIT };
    let slurm = Slurm::new(place.node.clone(), site);
    let find = || daemon::find(&Proc::default(), place.node.as_str());
    let slurmd = aside(LIMIT, find).unwrap_or_else(|| Slurmd::Unknown(no_answer()));
    let confs = aside(LIMIT, || confs(config, &slurmd)).unwrap_or_else(no_confs);
    let us = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/sbin/gpu-reaper-hc"));
    let rights = aside(LIMIT, || rights(asked, &us, &slurm));
    // Whoever runs a command looks for it first, and would wait as long as that look did.
    let silence = NoAnswer::Unavailable { program: "scontrol", why: no_answer() };
    let shown = if rights.is_some() { slurm.shown_config() } else { Err(silence.clone()) };
    let shown_node = match &shown {
        Ok(_) => slurm.shown_node(),
        Err(silence) => Err(silence.clone()),
    };
    let release = if rights.is_some() { slurm.release() } else { Err(silence) };
    let rights = rights.unwrap_or_else(|| no_rights(asked));
    let mut found = Found {
        node: place.node.to_string(),
        config: config.clone(),
        errors: asked.errors.to_vec(),
        config_file: asked.config_file.to_owned(),
        config_changeable: rights.config_changeable,
        us_facts: rights.us_facts,
        us,
        // SAFETY: geteuid takes nothing and cannot fail.
        root: unsafe { libc::geteuid() } == 0,
        slurmd,
        confs,
        shown,
        shown_node,
        commands: Program::ALL.into_iter().map(Program::name).zip(rights.commands).collect(),
        release,
        program: None,
        prolog: vec![],
        epilog: vec![],
        gpus: aside(LIMIT, gpus),
        state: aside(LIMIT, || state(place, asked.now)),
        others: aside(LIMIT, others),
        token: rights.token,
        channels: rights.channels,
        journal: journal::listens(),
        textfile: config
            .metrics
            .textfile
            .as_deref()
            .and_then(|file| aside(LIMIT, || Textfile::look(file, &Proc::default(), asked.now.wall))),
    };
    scripts(&mut found);
    found
}

/// What files that root runs or believes say of themselves.
#[derive(Serialize, Deserialize)]
struct Rights {
    config_changeable: Look<Option<String>>,
    us_facts: Look<FileFacts>,
    token: Option<(PathBuf, Look<FileFacts>)>,
    channels: Vec<Channel>,
    /// In the order of [`Program::ALL`].
    commands: Vec<Result<PathBuf, String>>,
}

/// The file of a token that is used.
fn token_file(config: &Config) -> Option<PathBuf> {
    config.slurm.token_file.clone().filter(|_| config.slurm.source == SlurmSource::Rest)
}

/// No message is sent, and no program run.
fn channels(
    config: &Config,
    address: impl Fn(&Path) -> Result<(), String>,
    program: impl Fn(&str) -> Result<(), String>,
) -> Vec<Channel> {
    let channel =
        |key: &str, file: &Path, sound| Channel { key: key.to_owned(), file: file.to_owned(), sound };
    let hook =
        config.slack.webhook_file.iter().map(|file| channel("slack.webhook_file", file, address(file)));
    let ours = config.notify.exec.first().into_iter();
    hook.chain(ours.map(|path| channel("notify.exec", Path::new(path), program(path)))).collect()
}

fn rights(asked: &Asked, us: &Path, slurm: &Slurm) -> Rights {
    Rights {
        config_changeable: files::changeable(asked.config_file),
        us_facts: files::facts(us),
        token: token_file(asked.config).map(|path| (path.clone(), files::facts(&path))),
        channels: channels(
            asked.config,
            |file| slack::address(file).map(drop),
            |program| exec::runnable(program, true).map(drop),
        ),
        commands: Program::ALL.into_iter().map(|program| slurm.command(program)).collect(),
    }
}

fn no_rights(asked: &Asked) -> Rights {
    Rights {
        config_changeable: Look::Unknown(no_answer()),
        us_facts: Look::Unknown(no_answer()),
        token: token_file(asked.config).map(|path| (path, Look::Unknown(no_answer()))),
        channels: channels(asked.config, |_| Err(no_answer()), |_| Err(no_answer())),
        commands: Program::ALL.into_iter().map(|_| Err(no_answer())).collect(),
    }
}

/// The scripts are known once the settings are.
fn scripts(found: &mut Found) {
    let program = found.key("HealthCheckProgram").value().map(str::to_owned);
    let name = program.as_deref().and_then(|value| value.split_whitespace().next());
    let beside = found.confs.used.as_ref().and_then(|named| named.path.parent()).map(Path::to_owned);
    let patterns = |key: &str| found.keys(key).unwrap_or_default().into_iter().map(|said| said.value);
    let (prolog, epilog): (Vec<_>, Vec<_>) = (patterns("Prolog").collect(), patterns("Epilog").collect());
    let silent = |pattern: String| Matched { pattern, scripts: Err(no_answer()) };
    let all = |patterns: &[String]| patterns.iter().map(|p| matched(p, beside.as_deref())).collect();
    let look = || -> (Option<Script>, Vec<Matched>, Vec<Matched>) {
        (name.map(|name| Script::look(Path::new(name))), all(&prolog), all(&epilog))
    };
    let seen = aside(LIMIT, look);
    let unseen = || {
        let silent_all = |patterns: &[String]| patterns.iter().cloned().map(silent).collect();
        (
            name.map(|name| Script::unseen(Path::new(name), &no_answer())),
            silent_all(&prolog),
            silent_all(&epilog),
        )
    };
    (found.program, found.prolog, found.epilog) = seen.unwrap_or_else(unseen);
}

fn no_answer() -> String {
    format!("no answer within {} s: a file server that is gone, or a driver that hangs", LIMIT.as_secs())
}

fn confs(config: &Config, slurmd: &Slurmd) -> Confs {
    let told = slurmd.told().map(|path| Named::look(&path));
    let key = config.slurm.conf.as_deref().map(Named::look);
    let default = DEFAULT_CONFS
        .iter()
        .map(|path| Named::look(Path::new(path)))
        .find(|named| named.facts != Look::NotThere);
    let inherited = std::env::var_os("SLURM_CONF").filter(|v| !v.is_empty());
    let inherited = inherited.map(|path| Named::look(Path::new(&path)));
    let copy = slurmd.is_configless().then(|| Named::look(Path::new(CONFIGLESS)));
    let copy = copy.filter(|named| named.facts.is().is_some());
    // A slurmd that was told nothing reads what the commands find too; nobody else is asked then.
    let told_nothing = slurmd.was_told_nothing();
    let used = match (told.clone().or(copy), &default) {
        (Some(named), _) => Some(named),
        (None, Some(default)) if told_nothing => Some(default.clone()),
        (None, _) => key.clone().or(inherited).or(default.clone()),
    };
    let folder = used.as_ref().and_then(|named| named.path.parent()).map(Path::to_owned);
    let beside = |name: &str| folder.as_ref().map(|folder| folder.join(name));
    let gres = match beside("gres.conf") {
        Some(path) => match files::head(&path, 4 << 20) {
            Look::Is(text) => Look::Is((path, text)),
            Look::NotThere => Look::NotThere,
            Look::Unknown(why) => Look::Unknown(format!("`{}`: {why}", path.display())),
        },
        None => Look::Unknown("no slurm.conf was found, and gres.conf lies beside it".to_owned()),
    };
    let cgroup = match beside("cgroup.conf") {
        Some(path) => match Look::of(Conf::read(&path)) {
            Look::Unknown(why) => Look::Unknown(format!("`{}`: {why}", path.display())),
            other => other,
        },
        None => Look::Unknown("no slurm.conf was found, and cgroup.conf lies beside it".to_owned()),
    };
    Confs { told, key, default, used, cgroup, gres }
}

fn no_confs() -> Confs {
    let unknown = Named {
        path: PathBuf::from(DEFAULT_CONFS[0]),
        facts: Look::Unknown(no_answer()),
        conf: Look::Unknown(no_answer()),
    };
    Confs {
        told: None,
        key: None,
        default: None,
        used: Some(unknown),
        cgroup: Look::Unknown(no_answer()),
        gres: Look::Unknown(no_answer()),
    }
}

fn gpus() -> Gpus {
    Gpus {
        on_bus: driver::nvidia_on_pci_bus(),
        loaded: driver::loaded(),
        cards: driver::listed_cards(),
        cut: driver::has_instances(),
        persistenced: driver::persistenced(),
    }
}

fn state(place: &Place, now: &Now) -> State {
    let folder = files::nearest(&place.dir).to_owned();
    State {
        made: folder == place.dir,
        is_folder: std::fs::metadata(&folder).map_or(true, |meta| meta.is_dir()),
        changeable: files::changeable(&folder),
        disk: files::disk(&place.dir),
        ledger_bytes: files::facts(&place.dir.join("ledger.db")).is().map_or(0, |file| file.size),
        runs: runs(place, now).unwrap_or_else(Runs::Unknown),
        folder,
    }
}

fn runs(place: &Place, now: &Now) -> Result<Runs, String> {
    match files::facts(&place.dir.join("ledger.db")) {
        Look::Is(_) => {}
        Look::NotThere => return Ok(Runs::None),
        Look::Unknown(why) => return Err(why),
    }
    let ledger = Ledger::open_read_only(&place.dir, Duration::from_secs(2)).map_err(|e| e.to_string())?;
    let newest = ledger.newest_run(now).map_err(|e| e.to_string())?;
    let cadence = match ledger.cadence(now).map_err(|e| e.to_string())? {
        Reading::Measured(Cadence { median_ms, p90_ms }) => Some((median_ms, p90_ms)),
        Reading::Absent(_) => None,
    };
    let persistent = is_persistent(&ledger.remembered().map_err(|e| e.to_string())?);
    let last =
        lock::last(&place.dir).map_err(|e| format!("`{}`: {e}", place.dir.join("run.lock").display()))?;
    let killed_in = match &last {
        Some(Last::Over(Before::Killed(killed))) => Some(killed.phase.clone()),
        _ => None,
    };
    Ok(Runs::Seen {
        newest_ms: newest.map(|newest| now.boot.since_ms(newest)),
        cadence,
        killed_in,
        amiss: last == Some(Last::Over(Before::EndedAmiss)),
        running: last == Some(Last::Running),
        persistent,
    })
}

/// As the runs remember it.
fn is_persistent(remembered: &Remembered) -> bool {
    remembered.get("node", "persistence-mode") == Some(1)
}

fn others() -> Others {
    Others {
        nhc: NHC_PROGRAMS.iter().map(PathBuf::from).find(|path| files::facts(path) != Look::NotThere),
        nhc_texts: texts(&NHC_TEXTS),
        nhc_helper: texts(&NHC_HELPERS).into_iter().next(),
        crons: texts(&CRONS),
    }
}

/// The texts of those files that are there, or may be.
fn texts(names: &[&str]) -> Vec<(PathBuf, Look<String>)> {
    let mut all = Vec::new();
    for name in names {
        match files::matching(name) {
            Ok(found) if name.contains('*') => all.extend(found),
            Ok(_) => all.push(PathBuf::from(name)),
            // The folder itself, which says why it cannot be read.
            Err(_) => all.extend(Path::new(name).parent().map(Path::to_owned)),
        }
    }
    let read = |path: PathBuf| {
        let text = files::head(&path, SCRIPT_BYTES);
        (path, text)
    };
    all.into_iter().map(read).filter(|(_, text)| *text != Look::NotThere).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Opening;
    use crate::units::{BootMs, NodeName, WallMs};

    #[test]
    fn rights_that_gave_no_answer_are_unknown_and_no_fault() {
        let mut config = crate::config::defaults();
        config.slurm.source = SlurmSource::Rest;
        config.slurm.token_file = Some("/etc/token".into());
        let place = Place { dir: "/nowhere".into(), node: NodeName::new("n1").unwrap() };
        let now = Now { boot_id: "b".into(), boot: BootMs(1), wall: WallMs(1) };
        let file = Path::new("/etc/x.yaml");
        let none =
            no_rights(&Asked { config: &config, errors: &[], config_file: file, place: &place, now: &now });
        let mut found = super::super::testing::right();
        found.commands = Program::ALL.into_iter().map(Program::name).zip(none.commands).collect();
        (found.config_changeable, found.us_facts, found.token) =
            (none.config_changeable, none.us_facts, none.token);
        assert_eq!(found.token.as_ref().unwrap().0, Path::new("/etc/token"));
        use super::super::{reach, report::Level, state};
        let lines: Vec<_> = state::configuration(&found).into_iter().chain(reach::commands(&found)).collect();
        let of = |level| lines.iter().filter(|line| line.level == level).count();
        assert_eq!((of(Level::Unknown), of(Level::Ok)), (2 + 4, 1), "all but the version: {lines:#?}");
    }

    #[test]
    fn persistence_is_read_where_the_runs_keep_it() {
        for value in [0, 1, 2] {
            let folder = tempfile::tempdir().unwrap();
            let now = Now { boot_id: "b".into(), boot: BootMs(1), wall: WallMs(1) };
            let opening = Opening { wait: Duration::from_secs(5), max_bytes: 64 << 20 };
            let node = NodeName::new("n1").unwrap();
            let mut ledger = Ledger::open(folder.path(), &node, &now, opening).unwrap();
            ledger.remember(&[("node".to_owned(), "persistence-mode", value)]).unwrap();
            let remembered = ledger.remembered().unwrap();
            assert_eq!(is_persistent(&remembered), value == 1);
            assert_eq!(is_persistent(&remembered), crate::run::faults::is_persistent(&remembered));
        }
    }
}
