//! What a page is written for: how wide, which signs, whether in colour. Found once at the door and given to whoever
//! writes a page. Texts of others are made harmless here; nothing here reads a clock, a file or the environment itself.

mod draw;
mod json;

pub use draw::Cell;
pub use json::{ascii, json_text};

/// The narrowest and the widest page; a terminal beyond either is written to as if it were that wide.
const NARROWEST: usize = 60;
const WIDEST: usize = 200;
/// No column of a table is made narrower than this.
const NARROWEST_COLUMN: usize = 6;

/// What a page is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Columns. No line that this type lays out is longer.
    pub width: usize,
    /// Whether signs beyond ASCII are shown; else the texts of others are spelled out too.
    pub unicode: bool,
    /// Whether escape sequences for colour are written.
    pub colour: bool,
}

/// How a text is set off. Colour says nothing that the words do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// As all other text.
    Plain,
    /// A heading.
    Strong,
    /// All is well.
    Good,
    /// Held, withheld, not known.
    Notice,
    /// A finding, an error.
    Bad,
}

impl Ink {
    /// What the sequence "Select Graphic Rendition" (ECMA-48) takes.
    fn code(self) -> &'static str {
        match self {
            Ink::Plain => "",
            Ink::Strong => "1",
            Ink::Good => "32",
            Ink::Notice => "33",
            Ink::Bad => "31",
        }
    }
}

impl Screen {
    /// For a page that is kept, and whose reader is not known.
    pub const PLAIN: Screen = Screen { width: 80, unicode: false, colour: false };
    /// For a page in which words are looked for: no line is broken.
    pub const UNBROKEN: Screen = Screen { width: 100_000, unicode: false, colour: false };

    /// `terminal`: the columns of the terminal that standard output is, 0 where it does not say; `None`: it is none.
    /// `env` gives a variable that is set and not empty.
    pub fn find(terminal: Option<u16>, env: &dyn Fn(&str) -> Option<String>) -> Screen {
        let columns = || env("COLUMNS").and_then(|text| text.parse().ok());
        let width = terminal.filter(|n| *n > 0).map(usize::from).or_else(columns).unwrap_or(80);
        // setlocale(3): the first of them that is set and not empty decides.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(env).unwrap_or_default();
        let charset = locale.split('@').next().and_then(|l| l.split('.').nth(1)).unwrap_or_default();
        let unicode = ["utf-8", "utf8"].iter().any(|name| charset.eq_ignore_ascii_case(name));
        // no-color.org; a terminal without a name is not known to take colour.
        let takes_colour = env("TERM").is_some_and(|name| name != "dumb") && env("NO_COLOR").is_none();
        Screen { width: width.clamp(NARROWEST, WIDEST), unicode, colour: terminal.is_some() && takes_colour }
    }

    /// A text of others as this screen may show it: what moves a terminal, and without Unicode whatever is not ASCII,
    /// is spelled out, once. Quotes are left alone.
    pub fn clean(&self, text: &str) -> String {
        let shown = |c: &char| self.unicode || c.is_ascii();
        let mut out = String::with_capacity(text.len());
        for c in harmless(text).chars() {
            match shown(&c) {
                true => out.push(c),
                false => out.extend(c.escape_unicode()),
            }
        }
        out
    }

    /// The text in a colour, where there is colour. To be laid out before: a sequence has no width.
    pub fn paint(&self, ink: Ink, text: &str) -> String {
        match self.colour && ink != Ink::Plain && !text.trim().is_empty() {
            true => format!("\u{1b}[{}m{text}\u{1b}[0m", ink.code()),
            false => text.to_owned(),
        }
    }

    /// `head`, then the text beside it, broken at blanks; each further line begins where the text began. The text is
    /// made harmless. Ends with a newline.
    pub fn paragraph(&self, ink: Ink, head: &str, text: &str) -> String {
        let indent = columns(head);
        let mut out = String::new();
        for (n, line) in broken(&self.clean(text), self.width.saturating_sub(indent)).iter().enumerate() {
            let line = self.paint(ink, line);
            let before = if n == 0 { head.to_owned() } else { " ".repeat(indent) };
            out += format!("{before}{line}").trim_end();
            out.push('\n');
        }
        out
    }

    /// Rows of cells as columns with two blanks between them. Where they do not fit the widest columns are made
    /// narrower, and their cells broken into several lines. Each row has its ink; cells are made harmless.
    pub fn table(&self, rows: &[(Ink, Vec<String>)]) -> String {
        self.table_with_numbers(rows, &[])
    }

    /// The same with these columns set to the right.
    pub fn table_with_numbers(&self, rows: &[(Ink, Vec<String>)], numbers: &[usize]) -> String {
        let cleaned = |row: &Vec<String>| row.iter().map(|cell| self.clean(cell)).collect::<Vec<_>>();
        let cells: Vec<Vec<String>> = rows.iter().map(|(_, row)| cleaned(row)).collect();
        let many = cells.iter().map(Vec::len).max().unwrap_or(0);
        let natural = |n: usize| {
            let column = cells.iter().filter_map(|row| row.get(n));
            column.map(|cell: &String| columns(cell)).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..many).map(natural).collect();
        let room = self.width.saturating_sub(2 * many.saturating_sub(1));
        while widths.iter().sum::<usize>() > room {
            match widths.iter_mut().max() {
                Some(widest) if *widest > NARROWEST_COLUMN => *widest -= 1,
                _ => break,
            }
        }
        let mut out = String::new();
        for ((ink, _), row) in rows.iter().zip(&cells) {
            let lines: Vec<Vec<String>> = row.iter().zip(&widths).map(|(c, w)| broken(c, *w)).collect();
            for n in 0..lines.iter().map(Vec::len).max().unwrap_or(0) {
                let mut line = String::new();
                for (column, (cell, width)) in lines.iter().zip(&widths).enumerate() {
                    let text = cell.get(n).map_or("", String::as_str);
                    let room = " ".repeat(width.saturating_sub(columns(text)));
                    line += &match numbers.contains(&column) {
                        true => format!("{room}{text}  "),
                        false => format!("{text}{room}  "),
                    };
                }
                out += &self.paint(*ink, line.trim_end());
                out.push('\n');
            }
        }
        out
    }
}

/// A text of others: whatever moves a terminal is spelled out. Quotes and backslashes are left alone, so that a text that
/// was spelled out already stays as it is.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' | '\\' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

/// How many columns a text takes. Ideographs and pictures take two; it is a guess as good as a terminal's.
fn columns(text: &str) -> usize {
    let wide = |c: char| {
        matches!(u32::from(c), 0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff
            | 0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff | 0x20000..=0x3fffd)
    };
    text.chars().map(|c| if wide(c) { 2 } else { 1 }).sum()
}

/// A text in lines of at most so many columns, broken at blanks; a longer word is broken where the line ends. There is
/// always one line.
fn broken(text: &str, width: usize) -> Vec<String> {
    let width = width.max(NARROWEST_COLUMN);
    let (mut lines, mut line, mut taken) = (Vec::new(), String::new(), 0);
    for word in text.split(' ') {
        let long = columns(word);
        if taken > 0 && taken + 1 + long > width {
            lines.push(std::mem::take(&mut line));
            taken = 0;
        } else if taken > 0 {
            line.push(' ');
            taken += 1;
        }
        for c in word.chars() {
            let one = columns(c.encode_utf8(&mut [0; 4]));
            if taken + one > width {
                lines.push(std::mem::take(&mut line));
                taken = 0;
            }
            line.push(c);
            taken += one;
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Set = [(&'static str, &'static str)];

    fn found(terminal: Option<u16>, set: &[(&str, &str)]) -> Screen {
        let env = |name: &str| {
            let value = set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            value.filter(|v| !v.is_empty())
        };
        Screen::find(terminal, &env)
    }

    #[test]
    fn the_terminal_says_how_wide_it_is_else_columns_does_else_it_is_80() {
        let table: [(Option<u16>, &str, usize); 9] = [
            (Some(100), "70", 100),
            (Some(0), "70", 70),
            (None, "120", 120),
            (None, "", 80),
            (None, "wide", 80),
            (None, "-5", 80),
            (Some(20), "", 60),
            (Some(900), "", 200),
            (None, "99999999999999999999", 80),
        ];
        for (terminal, columns, want) in table {
            assert_eq!(found(terminal, &[("COLUMNS", columns)]).width, want, "{terminal:?} {columns:?}");
        }
    }

    #[test]
    fn the_first_variable_of_the_locale_that_is_set_decides() {
        let table: [(&Set, bool); 8] = [
            (&[], false),
            (&[("LANG", "C.UTF-8")], true),
            (&[("LANG", "de_DE.utf8@euro")], true),
            (&[("LANG", "C")], false),
            (&[("LANG", "en_US.UTF-8"), ("LC_ALL", "C")], false),
            (&[("LANG", "en_US.UTF-8"), ("LC_ALL", "")], true),
            (&[("LANG", "C"), ("LC_CTYPE", "C.UTF-8")], true),
            (&[("LANG", "de_DE.ISO-8859-1")], false),
        ];
        for (set, want) in table {
            assert_eq!(found(None, set).unicode, want, "{set:?}");
        }
    }

    #[test]
    fn colour_is_for_a_terminal_that_takes_it_and_a_person_who_wants_it() {
        let table: [(Option<u16>, &Set, bool); 6] = [
            (Some(80), &[("TERM", "xterm")], true),
            (None, &[("TERM", "xterm")], false),
            (Some(80), &[("TERM", "dumb")], false),
            (Some(80), &[], false),
            (Some(80), &[("TERM", "xterm"), ("NO_COLOR", "1")], false),
            (Some(80), &[("TERM", "xterm"), ("NO_COLOR", "")], true),
        ];
        for (terminal, set, want) in table {
            assert_eq!(found(terminal, set).colour, want, "{terminal:?} {set:?}");
        }
        assert_eq!(Screen::PLAIN.paint(Ink::Bad, "x"), "x");
        assert_eq!(Screen { colour: true, ..Screen::PLAIN }.paint(Ink::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
    }

    #[test]
    fn without_unicode_a_text_of_others_is_spelled_out_and_quotes_stay() {
        let unicode = Screen { unicode: true, ..Screen::PLAIN };
        let text = "it's \"\u{fc}\"\n\u{1b}[2J\u{202e}";
        assert_eq!(unicode.clean(&unicode.clean(text)), unicode.clean(text), "spelled out once");
        assert_eq!(unicode.clean(text), "it's \"\u{fc}\"\\n\\u{1b}[2J\\u{202e}");
        assert_eq!(Screen::PLAIN.clean(text), "it's \"\\u{fc}\"\\n\\u{1b}[2J\\u{202e}");
    }

    #[test]
    fn a_table_keeps_its_width_and_breaks_the_widest_cells() {
        let row = |cells: [&str; 3]| (Ink::Plain, cells.map(str::to_owned).to_vec());
        let long = "a text of so many words that it has to be broken into several lines of its own column";
        let table = Screen::PLAIN.table(&[row(["guard", "saw", "limit"]), row(["gap", long, long])]);
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
        assert_eq!(table.lines().next().map(|line| line.find("limit").is_some()), Some(true));
        assert!(table.lines().count() > 3 && table.ends_with('\n'), "{table}");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_page_and_nothing_moves_the_terminal(text in any::<String>(), head in "[ -~]{0,12}", unicode in any::<bool>()) {
            let screen = Screen { unicode, ..Screen::PLAIN };
            let page = screen.paragraph(Ink::Bad, &head, &text);
            prop_assert!(page.lines().all(|line| columns(line) <= 80), "{}", page);
            prop_assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
            prop_assert!(unicode || page.is_ascii());
        }

        #[test]
        fn breaking_loses_no_sign(text in "[a-z ]{0,200}", width in 6usize..90) {
            let joined: String = broken(&text, width).concat();
            prop_assert_eq!(joined.replace(' ', ""), text.replace(' ', ""));
        }
    }
}
