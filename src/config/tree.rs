//! The YAML text as a tree that keeps what the library's own types lose: repeated keys, the difference
//! between nothing and null, and which place a value came from. Knows no key of ours; never repairs.
//!
//! Places: every key and value has a number, in reading order. The library names a position only in its
//! errors, so [`locate`] reads the text once more and fails on purpose at that number: the position is the
//! library's own, and a file without errors pays nothing for it.

use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

/// Larger files are refused unread.
pub(super) const MOST_BYTES: usize = 64 << 10;
/// The library's scanner takes time by the square of open brackets (100 000 of them: 55 s), before any
/// limit of its own counts. Brackets in all bound the nesting without a second scanner here.
const MOST_BRACKETS: usize = 1000;
const MOST_DEPTH: usize = 32;
/// More values than bytes are possible by aliases alone.
const MOST_NODES: usize = MOST_BYTES;

/// A key or value: its number in reading order and what it is.
pub(super) struct Node<'t> {
    pub at: usize,
    pub value: Value<'t>,
}

/// A value as YAML's core schema resolves it.
pub(super) enum Value<'t> {
    Null,
    Bool(bool),
    Whole(i128),
    Real(f64),
    Text(Cow<'t, str>),
    List(Vec<Node<'t>>),
    Table(Vec<Entry<'t>>),
}

/// A key with its value, in the order of the file.
pub(super) struct Entry<'t> {
    pub at: usize,
    pub key: Cow<'t, str>,
    pub value: Node<'t>,
}

/// What makes the whole text unusable, and where.
pub(super) struct Unreadable {
    pub cause: String,
    pub position: Option<(usize, usize)>,
}

/// Reads the text; `None` where nothing is said: no bytes, only comments, or a lone `---`.
pub(super) fn read(text: &str) -> Result<Option<Node<'_>>, Unreadable> {
    let refuse = |cause: String| Err(Unreadable { cause, position: None });
    if text.len() > MOST_BYTES {
        return refuse(format!("larger than {} KiB", MOST_BYTES >> 10));
    }
    if text.bytes().filter(|b| matches!(b, b'[' | b'{')).count() > MOST_BRACKETS {
        return refuse(format!("more than {MOST_BRACKETS} opening brackets"));
    }
    match build(text, usize::MAX) {
        Ok(Some(Node { value: Value::Null, .. })) if says_nothing(text) => Ok(None),
        Ok(node) => Ok(node),
        Err(error) => {
            let position = error.location().map(|l| (l.line(), l.column()));
            Err(Unreadable { cause: error.to_string(), position })
        }
    }
}

/// Line and column, from 1, of the key or value with this number.
pub(super) fn locate(text: &str, at: usize) -> Option<(usize, usize)> {
    let location = build(text, at).err()?.location()?;
    Some((location.line(), location.column()))
}

/// The number of the key that this dotted path names.
pub(super) fn find(root: &Node<'_>, path: &str) -> Option<usize> {
    let (mut node, mut at) = (root, None);
    for part in path.split('.') {
        let Value::Table(entries) = &node.value else {
            return None;
        };
        let entry = entries.iter().find(|e| e.key == part)?;
        (node, at) = (&entry.value, Some(entry.at));
    }
    at
}

fn build(text: &str, stop_at: usize) -> serde_yaml::Result<Option<Node<'_>>> {
    let seen = Cell::new(0);
    let builder = Builder { seen: &seen, stop_at, depth: 0 };
    let root = builder.deserialize(serde_yaml::Deserializer::from_str(text))?;
    Ok(Some(root).filter(|node| node.at != NOTHING))
}

/// The number of the value of an empty stream.
const NOTHING: usize = usize::MAX;

fn says_nothing(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').lines().all(|line| {
        let said = line.split_once(" #").map_or(line, |(before, _)| before).trim();
        said.is_empty() || said.starts_with('#') || said == "---" || said == "..."
    })
}

#[derive(Clone, Copy)]
struct Builder<'c> {
    seen: &'c Cell<usize>,
    stop_at: usize,
    depth: usize,
}

impl Builder<'_> {
    fn node<'t, E: de::Error>(self, value: Value<'t>) -> Result<Node<'t>, E> {
        Ok(Node { at: self.number()?, value })
    }

    fn number<E: de::Error>(self) -> Result<usize, E> {
        let at = self.seen.get();
        self.seen.set(at + 1);
        if at == self.stop_at {
            return Err(E::custom("here"));
        }
        if at > MOST_NODES {
            return Err(E::custom(format!("more than {MOST_NODES} values")));
        }
        Ok(at)
    }

    fn inner<E: de::Error>(self) -> Result<Self, E> {
        if self.depth == MOST_DEPTH {
            return Err(E::custom(format!("nested deeper than {MOST_DEPTH}")));
        }
        Ok(Builder { depth: self.depth + 1, ..self })
    }
}

impl<'t> DeserializeSeed<'t> for Builder<'_> {
    type Value = Node<'t>;

    fn deserialize<D: Deserializer<'t>>(self, from: D) -> Result<Node<'t>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for Builder<'_> {
    type Value = Node<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_none<E: de::Error>(self) -> Result<Node<'t>, E> {
        Ok(Node { at: NOTHING, value: Value::Null })
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node<'t>, E> {
        self.node(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node<'t>, E> {
        self.node(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node<'t>, E> {
        self.node(Value::Whole(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node<'t>, E> {
        self.node(Value::Whole(value.into()))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Node<'t>, E> {
        self.node(Value::Whole(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Node<'t>, E> {
        self.node(Value::Whole(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node<'t>, E> {
        self.node(Value::Real(value))
    }

    fn visit_borrowed_str<E: de::Error>(self, value: &'t str) -> Result<Node<'t>, E> {
        self.node(Value::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node<'t>, E> {
        self.node(Value::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<Node<'t>, A::Error> {
        let at = self.number()?;
        let inner = self.inner()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Node { at, value: Value::List(list) })
    }

    fn visit_map<A: MapAccess<'t>>(self, mut pairs: A) -> Result<Node<'t>, A::Error> {
        let at = self.number()?;
        let inner = self.inner()?;
        let mut table = Vec::new();
        while let Some(key) = pairs.next_key_seed(inner)? {
            let value = pairs.next_value_seed(inner)?;
            table.push(Entry { at: key.at, key: key_text(key)?, value });
        }
        Ok(Node { at, value: Value::Table(table) })
    }

    fn visit_enum<A: EnumAccess<'t>>(self, _: A) -> Result<Node<'t>, A::Error> {
        Err(de::Error::custom("tags (`!...`) have no meaning here"))
    }
}

fn key_text<'t, E: de::Error>(key: Node<'t>) -> Result<Cow<'t, str>, E> {
    match key.value {
        Value::Text(text) => Ok(text),
        Value::Null => Ok("null".into()),
        Value::Bool(value) => Ok(value.to_string().into()),
        Value::Whole(number) => Ok(number.to_string().into()),
        Value::Real(number) => Ok(number.to_string().into()),
        Value::List(_) | Value::Table(_) => Err(E::custom("a key must be a word, not a list or a table")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position_of(text: &str, path: &str) -> (usize, usize) {
        let root = read(text).ok().flatten().expect("a tree");
        locate(text, find(&root, path).expect("the key")).expect("a position")
    }

    #[test]
    fn a_key_is_found_where_it_stands() {
        let text =
            "# first\nmode: observe\ngpu:\n    source: nvml\nact: { a: 1, release: never }\n\"hi\": 1\n";
        let table = [
            ("mode", (2, 1)),
            ("gpu", (3, 1)),
            ("gpu.source", (4, 5)),
            ("act.release", (5, 14)),
            ("hi", (6, 1)),
        ];
        for (path, position) in table {
            assert_eq!(position_of(text, path), position, "{path}");
        }
    }

    #[test]
    fn nothing_said_is_not_null() {
        for text in [
            "",
            "\n\n",
            "# only\n  # comments\n",
            "---",
            "---\n",
            "--- # x\n...\n",
            "\u{feff}",
            "\u{feff}# x",
        ] {
            assert!(matches!(read(text), Ok(None)), "{text:?}");
        }
        for text in ["null", "~", "--- ~", "---\nnull\n"] {
            let is_null = matches!(read(text), Ok(Some(Node { value: Value::Null, .. })));
            assert!(is_null, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_plain_tree_is_refused() {
        let table = [
            "a: !x 1",
            "!x {}",
            "[a]: 1",
            "? {a: 1}\n: 2",
            "a: 1\n---\nb: 2",
            "a: *b",
            "a: [1",
            "\ta: 1",
            "a\u{0}b",
        ];
        for text in table {
            assert!(read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_hostile_text_is_refused_at_once() {
        let hundredfold: String = (1..9)
            .map(|n| format!("l{n}: &l{n} [{}]\n", vec![format!("*l{}", n - 1); 20].join(",")))
            .collect();
        let table = [
            "[".repeat(MOST_BYTES),
            "{a: ".repeat(MOST_BYTES / 4),
            "[".repeat(MOST_BRACKETS),
            "a".repeat(MOST_BYTES + 1),
            "- ".repeat(MOST_BYTES / 2),
            "? ".repeat(MOST_BYTES / 2),
            "a: &x [*x]".to_owned(),
            format!("l0: &l0 [x]\n{hundredfold}"),
            format!("{}1{}", "[".repeat(MOST_DEPTH + 1), "]".repeat(MOST_DEPTH + 1)),
            (0..MOST_DEPTH + 1).map(|n| format!("{}a:\n", " ".repeat(n))).collect(),
        ];
        for text in table {
            assert!(read(&text).is_err(), "{:?}", &text[..8]);
        }
    }
}
