//! Slurm's spellings of GPUs held: `gpu:h100:2(IDX:0,3-5)`, `gres/gpu=2,gres/gpu:a100=2` and their kin. A
//! count that its own indices contradict is an error: a wrong set would judge a neighbour's GPU.

use super::hostlist::bounds;
use crate::units::GresIndex;

/// No node has more; a larger index is not one.
const MOST_GPUS: u64 = 1024;

/// The GPUs that one text speaks of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// How many.
    pub count: u32,
    /// Which, ascending; `None` where the text does not say (`gpu:4`). Then nothing may be guessed.
    pub indices: Option<Vec<GresIndex>>,
    /// Whether it also holds shares of a GPU (`shard`, `mps`), whose devices are counted elsewhere.
    pub shares: bool,
}

/// One entry of the list.
struct Entry<'a> {
    name: &'a str,
    typed: bool,
    count: u32,
    indices: Option<Vec<u64>>,
}

/// Reads a GRES or TRES list; entries that are not GPUs (`nic:2`, `cpu=4`) are no concern of it. The empty
/// text and `(null)` hold none. `N/A` is an error: squeue prints it for jobs that do hold GPUs.
pub fn gpus(text: &str) -> Result<Gpus, String> {
    let bad = |what: &str| format!("GRES `{}`: {what}", text.escape_debug());
    if text.is_empty() || text == "(null)" {
        return Ok(Gpus { count: 0, indices: Some(Vec::new()), shares: false });
    }
    if text == "N/A" {
        return Err(bad("it does not say"));
    }
    let mut entries = Vec::new();
    for item in split_outside(text, b',').ok_or_else(|| bad("brackets do not match"))? {
        entries.push(entry(item).ok_or_else(|| bad("an entry is not understood"))?);
    }
    let shares = entries.iter().any(|e| ["shard", "mps"].contains(&e.name) && e.count > 0);
    entries.retain(|e| e.name == "gpu");
    let (count, indices) = match all_indices(&entries) {
        Some(set) => {
            let set = set.map_err(bad)?;
            (set.len() as u32, Some(set))
        }
        None => (total(&entries).map_err(bad)?, None),
    };
    Ok(Gpus { count, indices, shares })
}

/// Whether a node's GRES list names GPUs. `(null)` and the empty text name none.
pub fn names_gpus(text: &str) -> bool {
    // A piece cut inside brackets (`(IDX:0,3-5)`) has digits where a name would stand.
    text.split(',').any(|item| item.split([':', '(', '=']).next() == Some("gpu"))
}

/// The indices of all entries together; `None` where one of them does not say.
fn all_indices(entries: &[Entry<'_>]) -> Option<Result<Vec<GresIndex>, &'static str>> {
    let sets: Vec<&[u64]> = entries.iter().map(|e| e.indices.as_deref()).collect::<Option<_>>()?;
    let mut indices = sets.concat();
    indices.sort_unstable();
    if indices.windows(2).any(|pair| pair[0] == pair[1]) {
        return Some(Err("an index is named twice"));
    }
    Some(Ok(indices.into_iter().map(|i| GresIndex(i as u32)).collect()))
}

/// `gres/gpu=2,gres/gpu:a100=2` says one thing twice (PrincetonUniversity/jobstats#53).
fn total(entries: &[Entry<'_>]) -> Result<u32, &'static str> {
    let sum = |typed: bool| {
        let counts = entries.iter().filter(|e| e.typed == typed).map(|e| e.count);
        counts.fold(0u32, u32::saturating_add)
    };
    match (sum(false), sum(true)) {
        (0, typed) => Ok(typed),
        (untyped, typed) if typed <= untyped => Ok(untyped),
        _ => Err("more of one type than in all"),
    }
}

/// `[gres/|gres:]name[:type][:count][(IDX:...)|(S:...)|(CNT:n)|(shares)]` or `name[:type]=count`.
fn entry(item: &str) -> Option<Entry<'_>> {
    let item = item.strip_prefix("gres/").or_else(|| item.strip_prefix("gres:")).unwrap_or(item);
    let (spec, note) = match item.split_once('(') {
        Some((spec, note)) => (spec, Some(note.strip_suffix(')').filter(|n| !n.contains(['(', ')']))?)),
        None => (item, None),
    };
    let (spec, equals) = spec.split_once('=').map_or((spec, None), |(spec, count)| (spec, Some(count)));
    let fields: Vec<&str> = spec.split(':').collect();
    let name = *fields.first().filter(|n| !n.is_empty())?;
    let last = fields.last().filter(|_| fields.len() > 1);
    // What stands last is a count if it is a number (`gpu:2`), else a type (`gpu:a100` means one of it).
    let (typed, counted) = match (equals, last.map(|l| number(l))) {
        (Some(count), _) => (fields.len() > 1, if name == "gpu" { Some(number(count)?) } else { None }),
        (None, Some(Some(count))) => (fields.len() > 2, Some(count)),
        (None, Some(None)) => (true, None),
        (None, None) => (false, None),
    };
    if fields.len() > 3 || fields.iter().any(|f| f.is_empty()) {
        return None;
    }
    let indices = match note.and_then(|n| n.strip_prefix("IDX:")) {
        Some("N/A") => Some(Vec::new()),
        Some(ranges) => Some(index_set(ranges)?),
        None => None,
    };
    let count = match note.and_then(|n| n.strip_prefix("CNT:")) {
        Some(count) => number(count)?,
        None => counted.unwrap_or(1),
    };
    let contradicted = indices.as_ref().is_some_and(|set| set.len() as u64 != count);
    (!contradicted).then_some(Entry { name, typed, count: u32::try_from(count).ok()?, indices })
}

fn index_set(ranges: &str) -> Option<Vec<u64>> {
    let mut set = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = bounds(range).filter(|(_, last)| *last < MOST_GPUS)?;
        set.extend(first..=last);
    }
    Some(set)
}

fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Splits at a sign that stands outside parentheses; `None` where they do not match.
fn split_outside(text: &str, sign: u8) -> Option<Vec<&str>> {
    let (mut items, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' if inside => return None,
            b')' if !inside => return None,
            b'(' => inside = true,
            b')' => inside = false,
            b if b == sign && !inside => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[start..]);
    (!inside).then_some(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(count: u32, indices: Option<&[u32]>) -> Result<Gpus, String> {
        let indices = indices.map(|set| set.iter().map(|i| GresIndex(*i)).collect());
        Ok(Gpus { count, indices, shares: false })
    }

    #[test]
    fn every_spelling_gives_its_count_and_its_exact_indices() {
        // PrincetonUniversity/jobstats#53, NordicHPC/slurm2sql#12, facebookresearch/gcm#129 (SP-08).
        let table: [(&str, u32, Option<&[u32]>); 16] = [
            ("gpu:4", 4, None),
            ("gpu:a100:3(IDX:0,4-5)", 3, Some(&[0, 4, 5])),
            ("gres/gpu=2,gres/gpu:a100=2", 2, None),
            ("gpu:a:1(IDX:7),gpu:b:2(IDX:1-2)", 3, Some(&[1, 2, 7])),
            ("(null)", 0, Some(&[])),
            ("gpu:8(S:0-1)", 8, None),
            ("gres:gpu:2", 2, None),
            ("gres/gpu:h100:2", 2, None),
            ("gpu", 1, None),
            ("gpu:a100", 1, None),
            ("gpu:3090:2", 2, None),
            ("gpu(CNT:2)", 2, None),
            ("gpu:h100:0(IDX:N/A)", 0, Some(&[])),
            ("gpu:1g.5gb:2(IDX:0-1),nic:2(IDX:0-1)", 2, Some(&[0, 1])),
            ("cpu=4,mem=8G,node=1,gres/gpu=3", 3, None),
            ("cpu=4,mem=8G", 0, Some(&[])),
        ];
        for (text, count, indices) in table {
            assert_eq!(gpus(text), said(count, indices), "{text}");
        }
    }

    #[test]
    fn a_set_that_contradicts_its_count_is_an_error_not_a_guess() {
        // PrincetonUniversity/jobstats#53, albanie/slurm_gpustat#18 (SP-08): a wrong set judges a neighbour's GPU.
        for text in [
            "gpu:a100:2(IDX:0,4-5)",
            "gpu:2(IDX:0)",
            "gpu:2(IDX:0,0)",
            "gpu:a:1(IDX:1),gpu:b:1(IDX:1)",
            "gpu:2(IDX:N/A)",
            "gpu:2(IDX:1-0)",
            "gpu:1(IDX:x)",
            "gpu:1(IDX:)",
            "gpu:1(IDX:99999)",
            "gpu:2(IDX:0-1",
            "gpu:2)IDX:0-1(",
            "gres/gpu=1,gres/gpu:a100=2",
            "gres/gpu=-1",
            "gpu:a:b:2",
            "gpu:",
            ":2",
            ",",
            "gpu:1,,gpu:1",
        ] {
            assert!(gpus(text).is_err(), "{text}: {:?}", gpus(text));
        }
    }

    #[test]
    fn not_applicable_is_not_no_gpus() {
        // OSC/ood_core#105, OleHolmNielsen/Slurm_tools#12 (SP-07): `%b` says N/A for --gpus-per-node=2.
        assert!(gpus("N/A").is_err(), "{:?}", gpus("N/A"));
        assert_eq!(gpus("gpu:2(IDX:4-5)"), said(2, Some(&[4, 5])));
    }

    #[test]
    fn a_share_of_a_gpu_is_noticed() {
        assert!(gpus("shard:h100:2(2/4,0/4)").unwrap().shares);
        assert!(!gpus("gpu:1(IDX:0)").unwrap().shares);
    }
}
