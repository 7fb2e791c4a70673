//! What to change in slurm.conf and gres.conf so that Slurm's GPUs are the driver's cards: in the very lines that speak of
//! them, for slurmd dies of a second record of its node, and a second line would name devices twice.

use super::look::Found;
use super::report::Change;
use super::settings::words;
use crate::slurm::conf::Entry;
use crate::slurm::gres_conf::GresMap;
use crate::slurm::hostlist;

/// Has slurm.conf give out so many GPUs on this node.
pub fn count(found: &Found, cards: usize) -> Vec<Change> {
    let mut changes: Vec<Change> = types(found).into_iter().collect();
    changes.extend([record(found, cards), Change::run("scontrol reconfigure")]);
    changes
}

/// slurmd knows no kind of GRES that GresTypes does not name.
fn types(found: &Found) -> Option<Change> {
    let key = found.key("GresTypes");
    let said = key.value().unwrap_or("");
    let known = words(said).contains("gpu");
    let all: Vec<&str> = said.split(',').chain(["gpu"]).filter(|kind| !kind.trim().is_empty()).collect();
    (!known).then(|| found.write("GresTypes", &all.join(",")))
}

/// `Gres=` in the record of this node.
fn record(found: &Found, cards: usize) -> Change {
    let of = |key: &str| {
        let conf = found.confs.conf().ok()?;
        conf.node(&found.node, key).ok().flatten().flatten()
    };
    let Some(record) = of("nodename") else {
        let is_whole = found.confs.conf().is_ok_and(|conf| {
            conf.unread.is_empty() && conf.node(&found.node, "gres").is_ok_and(|line| line.is_none())
        });
        return match is_whole && found.shown_node.is_err() {
            true => Change::new_line(found.conf_name(), format!("NodeName={} Gres=gpu:{cards}", found.node)),
            false => {
                let how = format!("Gres=gpu:{cards} in the record that names {}", found.node);
                Change::Edit { file: found.conf_name(), line: None, how }
            }
        };
    };
    // What NodeName=DEFAULT says holds for others too.
    let own = |entry: &&Entry| (&entry.file, entry.line) == (&record.file, record.line);
    let gres = of("gres");
    let value = counted(gres.map_or("", |entry| &entry.value), cards);
    let how = match (gres.filter(own), value) {
        (Some(old), Some(value)) => format!("Gres={value} in place of Gres={}", old.value),
        (None, Some(value)) => format!("Gres={value} added to NodeName={}", record.value),
        (_, None) => {
            format!(
                "Gres={}: its numbers of GPUs are to be {cards} together",
                gres.map_or("", |entry| &entry.value)
            )
        }
    };
    found.edit(record, with_all(how, Some(&record.value), &found.node))
}

/// A list of GRES with so many GPUs, everything else as it was; `None` where it names several kinds of GPUs.
fn counted(said: &str, cards: usize) -> Option<String> {
    let is_gpu = |item: &&str| item.split([':', '(']).next() == Some("gpu");
    let mut items: Vec<&str> = said.split(',').filter(|item| !item.is_empty()).collect();
    let at: Vec<usize> = (0..items.len()).filter(|at| is_gpu(&items[*at])).collect();
    let gpus = match at[..] {
        [] => {
            items.insert(0, "gpu");
            0
        }
        [at] => at,
        _ => return None,
    };
    let (spec, note) = items[gpus].split_at(items[gpus].find('(').unwrap_or(items[gpus].len()));
    let fields: Vec<&str> = spec.split(':').collect();
    let is_number = |field: &str| field.bytes().all(|byte| byte.is_ascii_digit());
    let kept = match fields[..] {
        [_, last] | [_, _, last] if is_number(last) => &fields[..fields.len() - 1],
        [_] | [_, _] => &fields[..],
        _ => return None,
    };
    let counted = format!("{}:{cards}{note}", kept.join(":"));
    items[gpus] = &counted;
    Some(items.join(","))
}

/// A change of a line that other nodes share says so.
fn with_all(how: String, nodes: Option<&str>, node: &str) -> String {
    match nodes {
        Some(nodes) if nodes == node => how,
        Some(nodes) => format!("{how} (the line holds for all of {nodes})"),
        None => format!("{how} (the line holds for every node)"),
    }
}

/// A line of gres.conf that holds for this node.
#[derive(Debug)]
struct Placed {
    line: usize,
    /// Keys in lower case.
    words: Vec<(String, String)>,
}

impl Placed {
    fn value(&self, key: &str) -> Option<&str> {
        self.words.iter().rfind(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn is_gpu(&self) -> bool {
        self.value("name").is_some_and(|name| name.eq_ignore_ascii_case("gpu"))
    }

    fn concerns(&self, node: &str) -> bool {
        self.value("nodename").is_none_or(|list| hostlist::names(list, node).unwrap_or(true))
    }
}

/// Those that hold for this node, continued ones under the number of their first.
fn lines(text: &str, node: &str) -> Vec<Placed> {
    let word = |word: &str| {
        let (key, value) = word.split_once('=')?;
        Some((key.to_ascii_lowercase(), value.trim_matches('"').to_owned()))
    };
    let (mut lines, mut open) = (Vec::new(), None);
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or("").trim_end();
        let mut placed = open.take().unwrap_or(Placed { line, words: vec![] });
        placed.words.extend(text.trim_end_matches('\\').split_whitespace().filter_map(word));
        match text.ends_with('\\') {
            true => open = Some(placed),
            false => lines.push(placed),
        }
    }
    lines.extend(open);
    lines.retain(|placed| !placed.words.is_empty() && placed.concerns(node));
    lines
}

/// The line that says how this node's GPUs are found: its own before that of all, as [`GresMap`] has it.
fn detection(lines: &[Placed]) -> Option<&Placed> {
    let says = |own: bool| {
        lines.iter().rfind(|placed| {
            let is_own = placed.value("nodename").is_some();
            placed.value("autodetect").is_some() && is_own == own && (own || placed.value("name").is_none())
        })
    };
    says(true).or(says(false))
}

/// Whether slurmd asks NVML for this node's GPUs.
pub fn asks_nvml(text: &str, node: &str) -> bool {
    let lines = lines(text, node);
    let how = detection(&lines).and_then(|placed| placed.value("autodetect"));
    how.is_some_and(|how| how.eq_ignore_ascii_case("nvml"))
}

/// A line that is written in a way which is not known here.
fn strange(file: &str, text: &str, node: &str) -> Option<Change> {
    let is_strange = |line: &str| {
        let why = GresMap::parse(line, node).err().unwrap_or_default();
        why.contains("is not known here") || why.contains("is no `Key=value`")
    };
    let line = (1..).zip(text.lines()).find(|(_, line)| is_strange(line.trim_end_matches('\\')))?.0;
    let how = "only NodeName, Name, Type, File, Count, Cores, Links, Flags and AutoDetect are known here, and nothing that \
               is included";
    Some(Change::Edit { file: file.to_owned(), line: Some(line), how: how.to_owned() })
}

/// Has gres.conf name these device files, in this order.
pub fn by_hand(file: &str, text: &str, node: &str, minors: &[u32]) -> Vec<Change> {
    if let Some(change) = strange(file, text, node) {
        return vec![change];
    }
    let list: Vec<String> = minors.iter().map(u32::to_string).collect();
    let files = format!("/dev/nvidia[{}]", list.join(","));
    let lines = lines(text, node);
    let edit = |placed: &Placed, how: String| Change::Edit {
        file: file.to_owned(),
        line: Some(placed.line),
        how: with_all(how, placed.value("nodename"), node),
    };
    let auto = detection(&lines);
    let how =
        auto.and_then(|placed| placed.value("autodetect")).filter(|how| !how.eq_ignore_ascii_case("off"));
    let own = auto.filter(|placed| placed.value("nodename").is_some());
    let gpus: Vec<&Placed> = lines.iter().filter(|placed| placed.is_gpu()).collect();
    let off = match (own, how) {
        (Some(placed), Some(how)) => {
            Some(edit(placed, format!("AutoDetect=off in place of AutoDetect={how}")))
        }
        (None, Some(_)) if !gpus.is_empty() => {
            Some(Change::new_line(file, format!("NodeName={node} AutoDetect=off")))
        }
        _ => None,
    };
    let named = match gpus[..] {
        [] if own.is_some() => Change::new_line(file, format!("NodeName={node} Name=gpu File={files}")),
        [] => Change::new_line(file, format!("NodeName={node} AutoDetect=off Name=gpu File={files}")),
        [one] => edit(one, named_anew(one, &files)),
        [first, ..] => edit(first, together(&gpus, &files)),
    };
    off.into_iter().chain([named]).collect()
}

fn named_anew(placed: &Placed, files: &str) -> String {
    let old = ["file", "multiplefiles"].into_iter().find_map(|key| Some((key, placed.value(key)?)));
    let file = match old {
        Some(("file", old)) => format!("File={files} in place of File={old}"),
        Some((_, old)) => format!("File={files} in place of MultipleFiles={old}"),
        None => format!("File={files} added"),
    };
    match placed.value("count") {
        Some(count) => format!("{file}, Count={count} left out"),
        None => file,
    }
}

/// Several lines: what each of them names is the site's to say (cores, links).
fn together(gpus: &[&Placed], files: &str) -> String {
    let numbers: Vec<String> = gpus.iter().map(|placed| placed.line.to_string()).collect();
    let numbers = numbers.join(", ");
    let kinds = |two: &[&Placed]| two[0].value("type") != two[1].value("type");
    match gpus.windows(2).any(kinds) {
        true => format!("one Type= in all of lines {numbers}, or Slurm 25.11 with AutoDetect=nvml"),
        false => {
            format!("File= of lines {numbers}: together {files}, each once, in the order of the indices")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{named, right, shown_with, silent};
    use super::*;

    fn told(changes: &[Change]) -> Vec<String> {
        changes.iter().map(Change::to_string).collect()
    }

    #[test]
    fn gres_is_changed_in_the_record_that_the_node_has() {
        let conf = "GresTypes=gpu\nNodeName=DEFAULT Gres=gpu:8\nNodeName=n1 CPUs=64\nNodeName=n2 Gres=gpu:h100:8,nic:2 CPUs=4\n\
                    NodeName=n[3-4] Gres=gpu:a:2,gpu:b:2\nNodeName=n[5-6] Gres=gpu:8(S:0-1)\n";
        let at = "in /etc/slurm/slurm.conf";
        let table = [
            ("n1", format!("{at}, line 3: Gres=gpu:4 added to NodeName=n1")),
            ("n2", format!("{at}, line 4: Gres=gpu:h100:4,nic:2 in place of Gres=gpu:h100:8,nic:2")),
            (
                "n3",
                format!(
                    "{at}, line 5: Gres=gpu:a:2,gpu:b:2: its numbers of GPUs are to be 4 together (the line holds for \
                         all of n[3-4])"
                ),
            ),
            (
                "n5",
                format!(
                    "{at}, line 6: Gres=gpu:4(S:0-1) in place of Gres=gpu:8(S:0-1) (the line holds for all of n[5-6])"
                ),
            ),
            ("n9", format!("{at}, a new line: NodeName=n9 Gres=gpu:4")),
        ];
        for (node, want) in table {
            let mut found = silent(conf);
            found.node = node.to_owned();
            assert_eq!(told(&count(&found, 4)), [want, "run: scontrol reconfigure".to_owned()], "{node}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_seen_is_not_written_a_second_time() {
        let mut found = right();
        found.shown = shown_with(&[("GresTypes", "gpu")]);
        found.confs.used = Some(named("/etc/slurm/slurm.conf", "Include /nowhere/nodes.conf\n"));
        let want = "in /etc/slurm/slurm.conf: Gres=gpu:4 in the record that names n1";
        assert_eq!(told(&count(&found, 4))[0], want);
        // The copy that slurmctld sends is nobody's to edit, nor are its lines those of the file.
        found.confs.used = Some(named("/run/slurm/conf/slurm.conf", "NodeName=n1 CPUs=4\n"));
        let want = "in slurm.conf on slurmctld's host: Gres=gpu:4 added to NodeName=n1";
        assert_eq!(told(&count(&found, 4))[0], want);
    }

    #[test]
    fn a_kind_that_slurm_does_not_know_yet_is_named_first() {
        let changes = |types: &str| {
            let mut found = right();
            found.shown = shown_with(&[("GresTypes", types)]);
            told(&count(&found, 4))[0].clone()
        };
        assert_eq!(changes("(null)"), "in /etc/slurm/slurm.conf, a new line: GresTypes=gpu");
        assert_eq!(changes("nic"), "in /etc/slurm/slurm.conf, a new line: GresTypes=nic,gpu");
        assert!(changes("gpu,nic").contains("Gres=gpu:h100:4 in place of"), "{}", changes("gpu,nic"));
    }

    #[test]
    fn who_detects_is_asked_of_the_lines_that_hold_here() {
        let table = [
            ("AutoDetect=nvml\n", true),
            ("autodetect=NVML # all\nName=gpu Type=a\nName=gpu Type=b\n", true),
            ("NodeName=n[1-2] \\\n AutoDetect=nvml\n", true),
            ("AutoDetect=off\nNodeName=n1 AutoDetect=nvml Name=gpu\n", true),
            ("# AutoDetect=nvml\nName=gpu File=/dev/nvidia0\n", false),
            ("NodeName=n2 AutoDetect=nvml\n", false),
            ("AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia0\n", false),
            ("AutoDetect=rsmi\n", false),
            ("", false),
        ];
        for (text, want) in table {
            assert_eq!(asks_nvml(text, "n1"), want, "{text}");
        }
    }

    #[test]
    fn the_devices_are_named_anew_where_they_are_named_now() {
        let new = "a new line: NodeName=n1";
        let all = "(the line holds for every node)";
        let files = "/dev/nvidia[0,1]";
        let table: [(&str, &[String]); 9] = [
            ("# none\n", &[format!("{new} AutoDetect=off Name=gpu File={files}")]),
            ("AutoDetect=nvml\n", &[format!("{new} AutoDetect=off Name=gpu File={files}")]),
            (
                "NodeName=n1 AutoDetect=nvml\n",
                &[
                    "line 1: AutoDetect=off in place of AutoDetect=nvml".into(),
                    format!("{new} Name=gpu File={files}"),
                ],
            ),
            (
                "NodeName=n1 Name=gpu Type=a File=/dev/nvidia0 Count=1\nNodeName=n2 Name=gpu File=/dev/nvidia0\n",
                &[format!("line 1: File={files} in place of File=/dev/nvidia0, Count=1 left out")],
            ),
            ("\nName=gpu Count=2\n", &[format!("line 2: File={files} added, Count=2 left out {all}")]),
            (
                "AutoDetect=nvml\nName=gpu File=/dev/nvidia0\n",
                &[
                    format!("{new} AutoDetect=off"),
                    format!("line 2: File={files} in place of File=/dev/nvidia0 {all}"),
                ],
            ),
            (
                "Name=gpu File=/dev/nvidia0 Cores=0\nName=gpu File=/dev/nvidia0 Cores=1\n",
                &[format!(
                    "line 1: File= of lines 1, 2: together {files}, each once, in the order of the indices {all}"
                )],
            ),
            (
                "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n",
                &[format!(
                    "line 1: one Type= in all of lines 1, 2, or Slurm 25.11 with AutoDetect=nvml {all}"
                )],
            ),
            (
                "Name=gpu File=/dev/nvidia0\nInclude more.conf\n",
                &["line 2: only NodeName, Name, Type, File, Count, Cores, Links, Flags and AutoDetect are known here, and \
                   nothing that is included"
                    .into()],
            ),
        ];
        for (text, want) in table {
            let want: Vec<String> = want.iter().map(|words| format!("in gres.conf, {words}")).collect();
            assert_eq!(told(&by_hand("gres.conf", text, "n1", &[0, 1])), want, "{text}");
        }
    }
}
