//! Slurm's compressed lists, `gpu[01-03,07],n1` and `/dev/nvidia[0-3]`, written out. What is not understood
//! is an error: a list cut short would lose nodes or GPUs.

/// Slurm's own limit for one range.
const MOST_IN_A_RANGE: u64 = 64 << 10;

/// Every name of the list in its order, at most `most` of them. The width of a range's left number is its
/// zero padding; several brackets in one name multiply (slurm's hostlist grammar).
pub fn expand(list: &str, most: usize) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for item in split_outside_brackets(list)? {
        names.extend(expand_item(item, most)?);
        if names.len() > most {
            return Err(format!("`{}` names more than {most}", short(list)));
        }
    }
    Ok(names)
}

/// Whether the list names `name`.
pub fn names(list: &str, name: &str) -> Result<bool, String> {
    Ok(expand(list, MOST_IN_A_RANGE as usize)?.iter().any(|n| n == name))
}

fn short(list: &str) -> String {
    list.chars().take(60).flat_map(char::escape_debug).collect()
}

fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let bad = |what: &str| Err(format!("list `{}`: {what}", short(list)));
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            ',' if !inside => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            '[' | ']' => return bad("brackets do not match"),
            // `block{b1}` and `switch{s1}` (24.11 on) name sets that only the controller can write out.
            '{' | '}' => return bad("a function cannot be written out"),
            c if !c.is_ascii_graphic() => return bad("a character that no name has"),
            _ => {}
        }
    }
    items.push(&list[start..]);
    if inside {
        return bad("brackets do not match");
    }
    if items.iter().any(|item| item.is_empty()) {
        return bad("an empty name");
    }
    Ok(items)
}

fn expand_item(item: &str, most: usize) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((plain, after)) = rest.split_once('[') {
        let (ranges, tail) =
            after.split_once(']').ok_or_else(|| format!("`{}`: no closing bracket", short(item)))?;
        let numbers = expand_ranges(ranges, most)?;
        if names.len().saturating_mul(numbers.len()) > most {
            return Err(format!("`{}` names more than {most}", short(item)));
        }
        names = names
            .iter()
            .flat_map(|name| numbers.iter().map(move |number| format!("{name}{plain}{number}")))
            .collect();
        rest = tail;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

fn expand_ranges(ranges: &str, most: usize) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = bounds(range).ok_or_else(|| format!("`[{}]` is no range", short(ranges)))?;
        if last - first >= MOST_IN_A_RANGE || numbers.len() as u64 + (last - first) >= most as u64 {
            return Err(format!("`[{}]` names more than {most}", short(ranges)));
        }
        let width = range.split('-').next().map_or(0, str::len);
        numbers.extend((first..=last).map(|n| format!("{n:0width$}")));
    }
    Ok(numbers)
}

/// `N` or `N-M` with M not below N.
pub(super) fn bounds(range: &str) -> Option<(u64, u64)> {
    let number =
        |t: &str| t.parse::<u64>().ok().filter(|_| t.len() <= 18 && t.bytes().all(|b| b.is_ascii_digit()));
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_out_in_full() {
        let table: [(&str, &[&str]); 8] = [
            ("node1", &["node1"]),
            ("node[1-2]", &["node1", "node2"]),
            ("gpu[01-03,07],n1", &["gpu01", "gpu02", "gpu03", "gpu07", "n1"]),
            ("r[0-1]_b[8-9]", &["r0_b8", "r0_b9", "r1_b8", "r1_b9"]),
            ("n[098-101]", &["n098", "n099", "n100", "n101"]),
            ("a[1]-x,b", &["a1-x", "b"]),
            ("/dev/nvidia[0-1]", &["/dev/nvidia0", "/dev/nvidia1"]),
            ("n[3,1-2]", &["n3", "n1", "n2"]),
        ];
        for (list, want) in table {
            assert_eq!(expand(list, 100), Ok(want.iter().map(|name| name.to_string()).collect()), "{list}");
        }
    }

    #[test]
    fn a_list_that_is_not_understood_is_an_error_never_a_part_of_it() {
        for list in [
            "",
            ",",
            "a,",
            "a,,b",
            "n[",
            "n]",
            "n[1",
            "n[]",
            "n[2-1]",
            "n[1-]",
            "n[-1]",
            "n[a]",
            "n[1;2]",
            "n[[1]]",
            "n[+1]",
            "block{b1}",
            "a b",
            "a\nb",
            "n\u{e9}",
            "n[0-99999999999999999999]",
        ] {
            assert!(expand(list, 100).is_err(), "{list:?}");
        }
    }

    #[test]
    fn a_list_cannot_grow_beyond_its_bound() {
        assert_eq!(expand("n[1-100]", 100).map(|n| n.len()), Ok(100));
        for list in ["n[0-100]", "a[0-9]b[0-9]c[0-9]", "a[1-60],b[1-60]", "n[0-65536]", "n[1-60,1-60]"] {
            assert!(expand(list, 100).is_err(), "{list}");
        }
    }

    #[test]
    fn a_name_is_compared_whole() {
        assert_eq!(names("node[1-12]", "node1"), Ok(true));
        assert_eq!(names("node[10-12]", "node1"), Ok(false));
        assert_eq!(names("node[01-12]", "node1"), Ok(false));
    }
}
