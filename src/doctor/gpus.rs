//! The GPUs: whether every GRES index means one card, and whether the driver stays awake. By the driver's own files and
//! Slurm's: no GPU is initialised.

use super::gres;
use super::look::{Found, Gpus, Runs};
use super::report::{Change, Line};
use crate::gpu::driver::Card;
use crate::host::files::Look;
use crate::model::{KnownUnit, UnitKind};
use crate::policy::attribution::{self, Configured, Mapping};
use crate::slurm;
use crate::slurm::gres_conf::{self, GresConf};
use crate::units::{GresIndex, NvmlIndex};
use std::path::Path;

/// From this release on slurmd names what it detected by UUID.
const NAMES_UUIDS: (u16, u16) = (25, 11);
const MEND_PERSISTENCE: &str = "systemctl enable --now nvidia-persistenced";

/// How many GPUs Slurm is told that this node has, and who says so. An error: it cannot be told.
fn configured(found: &Found) -> Result<Option<(u32, String)>, String> {
    let count = |text: &str| slurm::gres::gpus(text).map(|gpus| gpus.count);
    if let Ok(node) = &found.shown_node {
        let said = node.gres.as_deref().unwrap_or("");
        return count(said).map(|n| Some((n, format!("slurmctld has Gres={said}"))));
    }
    let conf = found.confs.conf()?;
    match conf.node(&found.node, "gres")? {
        None => Ok(None),
        Some(None) => Ok(Some((0, format!("{} names no Gres of this node", conf.file.display())))),
        Some(Some(entry)) => {
            let by = format!("{}, line {}, has Gres={}", entry.file.display(), entry.line, entry.value);
            count(&entry.value).map(|n| Some((n, by)))
        }
    }
}

/// Slurm's GPUs against the cards, index by index.
pub fn gpus(found: &Found) -> Vec<Line> {
    const CHECK: &str = "gpus";
    let Some(seen) = &found.gpus else {
        let means =
            "the driver's files do not answer, or a file server does not: a run's look may hang as well";
        return vec![Line::unknown(CHECK, "no answer came from the driver's files", means)];
    };
    let configured = match configured(found) {
        Ok(configured) => configured,
        Err(why) => {
            return vec![Line::unknown(CHECK, why, "how many GPUs Slurm gives out here is not known")];
        }
    };
    let count = configured.as_ref().map_or(0, |(count, _)| *count);
    let by =
        configured.as_ref().map_or("no line of slurm.conf names this node".to_owned(), |(_, by)| by.clone());
    if !seen.on_bus {
        return match count {
            0 => vec![Line::ok(
                CHECK,
                "no NVIDIA device on the PCI bus, and Slurm gives out no GPU here",
                "a run exits at once",
            )],
            _ => {
                let means = "no NVIDIA device is on the PCI bus: jobs are given what is not there";
                vec![Line::fault(CHECK, by, means).mended_by([Change::run("lspci -d 10de:")])]
            }
        };
    }
    if !seen.loaded {
        let means = "the driver is not loaded: no GPU can be read, and no job is judged";
        let mend = Change::run(MEND_PERSISTENCE);
        return vec![
            Line::fault(CHECK, "/proc/driver/nvidia/version does not exist", means).mended_by([mend]),
        ];
    }
    let Some(cards) = &seen.cards else {
        let means = "whether each GRES index is a card is not known";
        return vec![Line::unknown(CHECK, "/proc/driver/nvidia/gpus could not be read", means)];
    };
    if count == 0 {
        let mend = gres::count(found, cards.len());
        let means = "Slurm gives out no GPU here: no job is registered with one";
        return vec![Line::fault(CHECK, by, means).mended_by(mend)];
    }
    if seen.cut {
        let means = "each instance has an index of its own, whose order no file tells; Slurm from 25.11 on names them by \
                     UUID in the Prolog";
        return vec![Line::unknown(CHECK, format!("a card is cut into MIG instances; {by}"), means)];
    }
    if count as usize != cards.len() {
        let means = format!("the driver has {} cards: one is missing or one is never given out", cards.len());
        let mends = [Change::run("nvidia-smi -L")].into_iter().chain(gres::count(found, cards.len()));
        return vec![Line::fault(CHECK, by, means).mended_by(mends)];
    }
    map(found, cards, count, &by)
}

/// What each index means, by the very function that attributes a job's GPUs.
fn map(found: &Found, cards: &[Card], count: u32, by: &str) -> Vec<Line> {
    const CHECK: &str = "gres";
    let file = found.beside_conf("gres.conf");
    let detect = || Change::new_line(&file, "AutoDetect=nvml");
    let ok = |means: String| {
        vec![
            Line::ok("gpus", by, format!("the driver has {} cards", cards.len())),
            Line::ok(CHECK, format!("{file}: {count} indices"), means),
        ]
    };
    let (text, conf) = match &found.confs.gres {
        Look::Is((path, text)) => (text, GresConf::of(path.clone(), text.clone())),
        Look::NotThere => {
            let means =
                "slurmd does not know which device an index is: neither do we, and no job is attributed";
            return vec![Line::fault(CHECK, format!("{file} does not exist"), means).mended_by([detect()])];
        }
        Look::Unknown(why) => return vec![Line::unknown(CHECK, why, "which card an index is, is not known")],
    };
    if gres::asks_nvml(text, &found.node) && found.version().is_some_and(|version| version >= NAMES_UUIDS) {
        return ok("slurmd detects the cards and names them to the Prolog by UUID".to_owned());
    }
    let means = "a job that is registered by index is not attributed, and so not judged";
    let mut minors: Vec<u32> = cards.iter().filter_map(|c| c.minor.measured()).map(|m| m.0).collect();
    minors.sort_unstable();
    let by_hand = || gres::by_hand(&file, text, &found.node, &minors);
    let listed = match conf.map(&found.node) {
        Ok(map) => map,
        Err(why) => return vec![Line::fault(CHECK, why, means).mended_by(by_hand())],
    };
    if let Some(line) = missing_file(&listed, cards) {
        return vec![line];
    }
    let mapping = slurm::mapping(listed);
    let known = units(cards);
    let unknown: Vec<u32> =
        (0..count).filter(|at| attribution::by_index(GresIndex(*at), &known, &mapping).is_none()).collect();
    if let Some(card) = cards.iter().find(|card| card.uuid.measured().is_none()) {
        let what = format!("the card at {} has no UUID yet", card.pci.as_str());
        let means = "the driver has never initialised it: the first run does";
        return vec![Line::unknown(CHECK, what, means).mended_by([Change::run(MEND_PERSISTENCE)])];
    }
    if unknown.is_empty() {
        return ok(format!("each is one card: {}", indices(&known, &mapping, count)));
    }
    let list: Vec<String> = unknown.iter().map(u32::to_string).collect();
    let what = format!("{file}: index {} is no card for certain", list.join(", "));
    let why = why_not(cards, &mapping, count);
    vec![Line::fault(CHECK, what, format!("{why}: {means}")).mended_by(by_hand())]
}

/// A device file that gres.conf names and no card has.
fn missing_file(listed: &gres_conf::GresMap, cards: &[Card]) -> Option<Line> {
    let gres_conf::GresMap::Files(files) = listed else { return None };
    let has = |file: &Path| {
        let minor = gres_conf::minor_of(file).ok()?;
        cards.iter().find(|card| card.minor.measured() == Some(&minor))
    };
    let gone = files.iter().find(|file| has(file).is_none())?;
    let reason = match gres_conf::minor_of(gone) {
        Ok(minor) => format!("no card of the driver has minor {}", minor.0),
        Err(why) => why,
    };
    let means =
        format!("{reason}: slurmd waits for it before it registers, or gives out a card that is not there");
    let mend = Change::run("grep -H Minor /proc/driver/nvidia/gpus/*/information");
    Some(Line::fault("gres", format!("gres.conf names `{}`", gone.display()), means).mended_by([mend]))
}

/// The cards as a run would know them: NVML lists them in the order of the bus.
fn units(cards: &[Card]) -> Vec<KnownUnit> {
    let unit = |(at, card): (usize, &Card)| {
        let uuid = card.uuid.measured()?.clone();
        let index = NvmlIndex(u32::try_from(at).ok()?);
        Some(KnownUnit { uuid, kind: UnitKind::Gpu, index, minor: card.minor, name: card.name.clone() })
    };
    cards.iter().enumerate().filter_map(unit).collect()
}

fn indices(known: &[KnownUnit], mapping: &Mapping, count: u32) -> String {
    let of = |at: u32| {
        let unit = attribution::by_index(GresIndex(at), known, mapping)?;
        let minor = unit.minor.measured()?;
        Some(format!("{at} is /dev/nvidia{}", minor.0))
    };
    (0..count).filter_map(of).collect::<Vec<_>>().join(", ")
}

/// Why an index is not known.
fn why_not(cards: &[Card], mapping: &Mapping, count: u32) -> String {
    let in_order = (0..).zip(cards).all(|(at, card)| card.minor.measured().is_none_or(|minor| minor.0 == at));
    match mapping {
        Mapping::AutoDetected(Configured::Count(n)) if *n != count => {
            format!("gres.conf counts {n} GPUs, Slurm {count}")
        }
        Mapping::AutoDetected(_) if !in_order => {
            "the device files are numbered otherwise than the bus, and slurmd's order is not known".to_owned()
        }
        Mapping::AutoDetected(_) if cards.windows(2).any(|two| two[0].name != two[1].name) => {
            "the cards are of several models, and slurmd's order is not known".to_owned()
        }
        Mapping::AutoDetected(_) => "slurmd detects the cards, and its order is not known".to_owned(),
        Mapping::Minors(files) if files.len() < count as usize => {
            format!("gres.conf names {} device files", files.len())
        }
        Mapping::Minors(_) | Mapping::Unknown => "a device file is none of a card".to_owned(),
    }
}

/// Whether the driver stays initialised while nobody uses a GPU.
pub fn persistence(found: &Found) -> Vec<Line> {
    const CHECK: &str = "persistence";
    let Some(Gpus { on_bus: true, persistenced, .. }) = &found.gpus else { return vec![] };
    if *persistenced {
        return vec![Line::ok(
            CHECK,
            "nvidia-persistenced runs",
            "a look takes no initialisation: 10 s are enough",
        )];
    }
    let runs = found.state.as_ref().map(|state| &state.runs);
    if let Some(Runs::Seen { newest_ms: Some(_), persistent: true, .. }) = runs {
        let means = "a look takes no initialisation: 10 s are enough; what `nvidia-smi -pm 1` sets is gone at the next boot";
        return vec![Line::ok(CHECK, "the last run that read it found persistence mode on", means)];
    }
    let means = "each first touch initialises every GPU: a look may take 35 s instead of 10, and after a job nothing is \
                 checked for what it left; where `nvidia-smi -pm 1` was given since, the next run sees it";
    let mend = Change::run(MEND_PERSISTENCE);
    vec![Line::warning(CHECK, "nvidia-persistenced does not run", means).mended_by([mend])]
}

#[cfg(test)]
mod tests {
    use super::super::report::Level;
    use super::super::testing::{Case, card, cards, levels_of, right, silent};
    use super::*;
    use crate::reading::{Absence, Reading};

    fn level(found: &Found) -> Level {
        levels_of(&gpus(found)).into_iter().max().unwrap()
    }

    fn gres(found: &mut Found, text: &str) {
        found.confs.gres = Look::Is(("/etc/slurm/gres.conf".into(), text.to_owned()));
    }

    fn seen(found: &mut Found) -> &mut Gpus {
        found.gpus.as_mut().unwrap()
    }

    #[test]
    fn every_index_is_a_card_or_it_is_said_which_is_not() {
        let table: [Case; 15] = [
            ("right", &|_| {}, Level::Ok, "each is one card: 0 is /dev/nvidia0, 1 is /dev/nvidia1"),
            ("detected", &|f| gres(f, "AutoDetect=nvml\n"), Level::Ok, "0 is /dev/nvidia0"),
            (
                "swapped by hand",
                &|f| gres(f, "Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia[0,2-3]\n"),
                Level::Ok,
                "0 is /dev/nvidia1",
            ),
            ("no gres.conf", &|f| f.confs.gres = Look::NotThere, Level::Fault, "no job is attributed"),
            ("unread", &|f| f.confs.gres = Look::Unknown("no".into()), Level::Unknown, "is not known"),
            (
                "one file too few",
                &|f| gres(f, "Name=gpu File=/dev/nvidia[0-2]\n"),
                Level::Fault,
                "names 3 device files",
            ),
            (
                "a file without a card",
                &|f| gres(f, "Name=gpu File=/dev/nvidia[0-2,7]\n"),
                Level::Fault,
                "no card of the driver has minor 7",
            ),
            (
                "no device at all",
                &|f| gres(f, "Name=gpu File=/dev/null\n"),
                Level::Fault,
                "slurmd waits for it",
            ),
            ("not understood", &|f| gres(f, "Include more.conf\n"), Level::Fault, "not attributed"),
            (
                "detected, swapped",
                &|f| {
                    gres(f, "AutoDetect=nvml\n");
                    seen(f).cards = Some(cards(&[1, 0, 2, 3]))
                },
                Level::Fault,
                "numbered otherwise than the bus",
            ),
            (
                "a card is gone",
                &|f| seen(f).cards = Some(cards(&[0, 1, 2])),
                Level::Fault,
                "the driver has 3 cards",
            ),
            ("cut", &|f| seen(f).cut = true, Level::Unknown, "an index of its own"),
            ("not loaded", &|f| seen(f).loaded = false, Level::Fault, "the driver is not loaded"),
            ("unreadable cards", &|f| seen(f).cards = None, Level::Unknown, "not known"),
            ("no answer", &|f| f.gpus = None, Level::Unknown, "may hang"),
        ];
        for (name, change, want, words) in table {
            let mut found = right();
            change(&mut found);
            let lines = gpus(&found);
            assert_eq!(level(&found), want, "{name}: {lines:?}");
            assert!(lines.iter().any(|line| line.means.contains(words)), "{name}: {lines:?}");
        }
    }

    #[test]
    fn what_is_named_otherwise_is_changed_where_it_stands() {
        let mends = |text: &str| {
            let mut found = right();
            gres(&mut found, text);
            gpus(&found).iter().flat_map(|l| &l.change).map(Change::to_string).collect::<Vec<_>>().join("; ")
        };
        let all = "/dev/nvidia[0,1,2,3]";
        let few = mends("NodeName=n1 Name=gpu File=/dev/nvidia[0-2]\n");
        assert_eq!(
            few,
            format!("in /etc/slurm/gres.conf, line 1: File={all} in place of File=/dev/nvidia[0-2]")
        );
        let none = mends("NodeName=n1 Name=gpu Count=4\n");
        assert_eq!(none, format!("in /etc/slurm/gres.conf, line 1: File={all} added, Count=4 left out"));
        let mut found = right();
        seen(&mut found).cards = Some(cards(&[0, 1, 2]));
        let lines = gpus(&found);
        let whole: Vec<String> = lines[0].change.iter().map(Change::to_string).collect();
        assert!(
            whole.iter().any(|line| line.contains("Gres=gpu:h100:3 in place of Gres=gpu:h100:4")),
            "{whole:?}"
        );
        assert!(!whole.iter().any(|line| line.contains("a new line: NodeName")), "{whole:?}");
    }

    #[test]
    fn from_25_11_on_uuids_need_no_map() {
        let mut found = right();
        gres(&mut found, "AutoDetect=nvml\n");
        seen(&mut found).cards = Some(cards(&[1, 0, 2, 3]));
        found.shown = super::super::testing::shown("PrologFlags", "Alloc", "25.11.0");
        assert_eq!(level(&found), Level::Ok);
        for other in ["# AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-2]\n", "NodeName=n2 AutoDetect=nvml\n"]
        {
            gres(&mut found, other);
            assert_eq!(level(&found), Level::Fault, "{other}");
        }
    }

    #[test]
    fn a_card_that_was_never_initialised_is_not_known() {
        let mut found = right();
        let mut never = card(3);
        never.uuid = Reading::Absent(Absence::NotUnderstood);
        let mut all = cards(&[0, 1, 2]);
        all.push(never);
        seen(&mut found).cards = Some(all);
        assert_eq!(level(&found), Level::Unknown);
    }

    #[test]
    fn a_node_without_gpus_is_told_from_one_whose_gpus_are_gone() {
        let bare = |gres: Option<&str>| {
            let mut found = right();
            seen(&mut found).on_bus = false;
            found.shown_node.as_mut().unwrap().gres = gres.map(str::to_owned);
            (level(&found), persistence(&found).len())
        };
        assert_eq!(bare(None), (Level::Ok, 0));
        assert_eq!(bare(Some("gpu:h100:4")), (Level::Fault, 0));
        let mut found = right();
        found.shown_node.as_mut().unwrap().gres = None;
        assert_eq!(level(&found), Level::Fault, "cards that nobody gives out");
    }

    #[test]
    fn without_slurmctld_the_nodes_line_says_how_many() {
        let silent = |conf: &str| {
            let mut found = silent(conf);
            gres(&mut found, "AutoDetect=off\nName=gpu File=/dev/nvidia[0-3]\n");
            level(&found)
        };
        assert_eq!(silent("NodeName=n[1-9] Gres=gpu:h100:4\n"), Level::Ok);
        assert_eq!(silent("NodeName=n[1-9] Gres=gpu:h100:8\n"), Level::Fault);
        assert_eq!(silent("NodeName=n2 Gres=gpu:4\n"), Level::Fault, "no line names it");
        assert_eq!(silent("NodeName=n[\n"), Level::Unknown);
    }

    #[test]
    fn persistence_is_a_matter_of_patience() {
        let mut found = right();
        assert_eq!(levels_of(&persistence(&found)), [Level::Ok]);
        seen(&mut found).persistenced = false;
        let lines = persistence(&found);
        assert_eq!(levels_of(&lines), [Level::Warning]);
        assert_eq!(lines[0].change[0].to_string(), "run: systemctl enable --now nvidia-persistenced");
    }

    #[test]
    fn persistence_without_the_daemon_is_as_a_run_of_this_boot_read_it() {
        for (read, this_boot, want) in
            [(true, true, Level::Ok), (true, false, Level::Warning), (false, true, Level::Warning)]
        {
            let mut found = right();
            seen(&mut found).persistenced = false;
            let Runs::Seen { newest_ms, persistent, .. } = &mut found.state.as_mut().unwrap().runs else {
                panic!("a run was seen");
            };
            *persistent = read;
            *newest_ms = newest_ms.filter(|_| this_boot);
            assert_eq!(levels_of(&persistence(&found)), [want], "{read} {this_boot}");
        }
    }
}
