//! Recordings as nvidia-smi would write them, made of spans of the same look.

/// What every GPU says for a while.
#[derive(Clone, Copy)]
pub struct Span {
    pub util: u32,
    pub memctl: u32,
    pub memory_mib: u32,
    pub watts: u32,
    pub processes: &'static str,
    pub holders: &'static str,
}

pub fn working() -> Span {
    Span { util: 97, memctl: 40, memory_mib: 61_000, watts: 600, processes: "1", holders: "1" }
}

/// A process and its memory, and no compute.
pub fn resting() -> Span {
    Span { util: 0, memctl: 0, watts: 118, ..working() }
}

const COLUMNS: [&str; 11] = [
    "timestamp",
    "uuid",
    "index",
    "utilization.gpu [%]",
    "utilization.memory [%]",
    "memory.used [MiB]",
    "memory.total [MiB]",
    "power.draw [W]",
    "temperature.gpu",
    "processes",
    "holders",
];

/// A recording in the making.
pub struct Recording {
    gpus: u32,
    every_s: u32,
    rows: Vec<(u32, [String; 11])>,
    end_s: u32,
    columns: Vec<usize>,
}

impl Recording {
    pub fn new(gpus: u32, every_s: u32) -> Recording {
        Recording { gpus, every_s, rows: Vec::new(), end_s: 0, columns: (0..COLUMNS.len()).collect() }
    }

    pub fn span(self, minutes: u32, span: Span) -> Recording {
        self.seconds(minutes * 60, span)
    }

    pub fn seconds(mut self, seconds: u32, span: Span) -> Recording {
        let until_s = self.end_s + seconds;
        while self.end_s < until_s {
            let s = self.end_s;
            for gpu in 0..self.gpus {
                let cells = [
                    format!("2026/11/29 {:02}:{:02}:{:02}.000", 8 + s / 3600, s / 60 % 60, s % 60),
                    format!("GPU-{gpu}"),
                    gpu.to_string(),
                    format!("{} %", span.util),
                    format!("{} %", span.memctl),
                    format!("{} MiB", span.memory_mib),
                    "81559 MiB".to_owned(),
                    format!("{}.00 W", span.watts),
                    "41".to_owned(),
                    span.processes.to_owned(),
                    span.holders.to_owned(),
                ];
                self.rows.push((s, cells));
            }
            self.end_s += self.every_s;
        }
        self
    }

    /// Leaves the rows of some minutes out.
    pub fn but(mut self, hole: impl Fn(u32) -> bool) -> Recording {
        self.rows.retain(|(s, _)| !hole(s / 60));
        self
    }

    pub fn without(mut self, name: &str) -> Recording {
        self.columns.retain(|column| COLUMNS[*column] != name);
        self
    }

    /// The same word in every row of a column.
    pub fn word(mut self, name: &str, word: &str) -> Recording {
        let column = COLUMNS.iter().position(|column| *column == name).unwrap();
        self.rows.iter_mut().for_each(|(_, cells)| cells[column] = word.to_owned());
        self
    }

    pub fn reversed(mut self) -> Recording {
        self.columns.reverse();
        self
    }

    pub fn text(&self) -> String {
        let line = |cells: &dyn Fn(usize) -> String| {
            self.columns.iter().map(|column| cells(*column)).collect::<Vec<_>>().join(", ") + "\n"
        };
        let mut text = line(&|column| COLUMNS[column].to_owned());
        for (_, cells) in &self.rows {
            text += &line(&|column| cells[column].clone());
        }
        text
    }
}
