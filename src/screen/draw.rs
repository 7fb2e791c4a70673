//! The signs of a drawing over time, one a column. A hole, an absent reading and a zero are three different things, and
//! no two of them look alike.

use super::Screen;

/// What one column of a drawing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A value as so many thousandths of the top; 0 is zero and nothing else is.
    Permille(u32),
    /// Something was to be read, and was not readable.
    Absent,
    /// No sample: nothing is known.
    Hole,
}

impl Cell {
    /// A value against the top of its scale. Above zero it is never drawn as zero, above the top as the top.
    pub fn of(value: u64, top: u64) -> Cell {
        match (value, top) {
            (0, _) => Cell::Permille(0),
            (_, 0) => Cell::Permille(1000),
            _ => Cell::Permille((value.saturating_mul(1000) / top).clamp(1, 1000) as u32),
        }
    }
}

impl Screen {
    /// What [`Screen::sign`] draws, in words.
    pub fn legend(&self) -> &'static str {
        match self.unicode {
            true => {
                "\u{2581} to \u{2588}: above zero up to the top; `.` zero; `?` not readable; blank: no sample"
            }
            false => "1 to 8: eighths of the top; `.` zero; `?` not readable; blank: no sample",
        }
    }

    /// One sign, one column wide.
    pub fn sign(&self, cell: Cell) -> char {
        const BLOCKS: [char; 8] =
            ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
        const EIGHTHS: [char; 8] = ['1', '2', '3', '4', '5', '6', '7', '8'];
        match cell {
            Cell::Hole => ' ',
            Cell::Absent => '?',
            Cell::Permille(0) => '.',
            Cell::Permille(n) => {
                let eighth = (n.saturating_sub(1) as usize * 8 / 1000).min(7);
                if self.unicode { BLOCKS[eighth] } else { EIGHTHS[eighth] }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_a_hole_and_what_is_not_readable_look_like_nothing_else() {
        for screen in [Screen::PLAIN, Screen { unicode: true, ..Screen::PLAIN }] {
            let signs: String =
                [0, 1, 125, 126, 500, 1000].map(|n| screen.sign(Cell::Permille(n))).iter().collect();
            assert_eq!(
                signs,
                if screen.unicode { ".\u{2581}\u{2581}\u{2582}\u{2584}\u{2588}" } else { ".11248" }
            );
            let others = [Cell::Hole, Cell::Absent].map(|cell| screen.sign(cell));
            assert!(others == [' ', '?'] && !others.iter().any(|c| signs.contains(*c)));
        }
    }

    #[test]
    fn little_is_not_nothing_and_too_much_is_the_top() {
        let table = [
            ((0, 700), 0),
            ((1, 700_000), 1),
            ((350, 700), 500),
            ((900, 700), 1000),
            ((1, 0), 1000),
            ((0, 0), 0),
        ];
        for ((value, top), want) in table {
            assert_eq!(Cell::of(value, top), Cell::Permille(want), "{value} of {top}");
        }
    }
}
