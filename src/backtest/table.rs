//! A recording as text: the CSV that nvidia-smi writes for `--query-gpu=timestamp,... --format=csv -l N`, columns in
//! any order, with or without units. Text in, rows out: a word in place of a number is a reason, a column that is not
//! there was not recorded, and what cannot be understood is an error with its line, never a guess.

use crate::gpu::nvidia_smi::table::{
    clocks_event, excludes_reserved, memory, mig_mode, number, percent, temperature, watts,
};
use crate::model::{Fields, Observation, ProcessCount, Readings, UnitRef};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{Megahertz, Milliwatts, NvmlIndex, PciAddress, Percent, UnitUuid};
use chrono::NaiveDateTime;
use std::collections::HashMap;

macro_rules! columns {
    ($($name:ident: $unit:literal, $spellings:expr;)*) => {
        /// What is read of a recording.
        #[derive(Clone, Copy)]
        enum Column { $($name,)* }

        /// Each with its unit and its names, the better one first.
        const COLUMNS: &[(Column, &str, &[&str])] = &[$((Column::$name, $unit, &$spellings),)*];
    };
}

columns! {
    Timestamp: "", ["timestamp"];
    Uuid: "", ["uuid", "gpu_uuid"];
    Index: "", ["index"];
    Pci: "", ["pci.bus_id", "gpu_bus_id"];
    Name: "", ["name", "gpu_name"];
    Driver: "", ["driver_version"];
    Mig: "", ["mig.mode.current"];
    SmUtil: "%", ["utilization.gpu"];
    MemUtil: "%", ["utilization.memory"];
    MemUsed: "MiB", ["memory.used"];
    MemTotal: "MiB", ["memory.total"];
    Power: "W", ["power.draw", "power.draw.average", "power.draw.instant"];
    Limit: "W", ["enforced.power.limit", "power.limit"];
    Clock: "MHz", ["clocks.current.sm", "clocks.sm"];
    ClockMax: "MHz", ["clocks.max.sm"];
    Temperature: "", ["temperature.gpu"];
    Reasons: "", ["clocks_event_reasons.active", "clocks_throttle_reasons.active"];
    Processes: "", ["processes"];
    Holders: "", ["holders"];
}

/// A recorder that was started anew writes its header again; it also warns between rows (the infoROM of a card).
const WARNING: &str = "WARNING:";

/// One row: what is needed of every row, and its text for those that become a sample.
pub struct Row<'a> {
    /// The recorder's local time, milliseconds; only differences mean anything.
    pub at_ms: i64,
    /// SM utilization.
    pub sm_util: Reading<Percent>,
    /// Memory-controller utilization.
    pub mem_util: Reading<Percent>,
    /// Power.
    pub power: Reading<Milliwatts>,
    line: &'a str,
}

/// One GPU of a recording.
pub struct Gpu<'a> {
    /// Its names; a uuid is made of its index or PCI address where none was recorded.
    pub unit: UnitRef,
    /// Its rows, their times rising.
    pub rows: Vec<Row<'a>>,
}

/// A whole recording.
pub struct Recording<'a> {
    header: Header,
    /// In the order in which they first appear.
    pub gpus: Vec<Gpu<'a>>,
}

/// Where each column stands.
struct Header {
    places: [Option<usize>; COLUMNS.len()],
    cells: usize,
    text: String,
}

impl Header {
    fn read(text: &str) -> Result<Header, String> {
        let named: Vec<(&str, &str)> = text.split(',').map(name_and_unit).collect();
        let mut places = [None; COLUMNS.len()];
        for (column, unit, spellings) in COLUMNS {
            let place = spellings.iter().find_map(|s| named.iter().position(|(name, _)| name == s));
            let again = place.and_then(|p| named[p + 1..].iter().find(|(name, _)| *name == named[p].0));
            if let Some((name, _)) = again {
                return Err(format!("two columns `{name}`; which of them is meant cannot be said"));
            }
            if let Some((name, said)) =
                place.map(|p| named[p]).filter(|(_, said)| !said.is_empty() && said != unit)
            {
                return Err(format!("`{name}` is in `{}`, expected `{unit}`", said.escape_debug()));
            }
            places[*column as usize] = place;
        }
        Header { places, cells: named.len(), text: text.to_owned() }.suffices()
    }

    fn suffices(self) -> Result<Header, String> {
        if self.place(Column::Timestamp).is_none() {
            let row = self.text.split(',').any(|cell| moment(cell.trim()).is_some());
            let found = if row { "a row stands where the header should" } else { "no column `timestamp`" };
            return Err(format!(
                "{found}; a header must name `timestamp` and `uuid`, `index` or `pci.bus_id`"
            ));
        }
        match [Column::Uuid, Column::Index, Column::Pci].iter().any(|c| self.place(*c).is_some()) {
            true => Ok(self),
            false => {
                Err("no column says whose a row is; expected `uuid`, `index` or `pci.bus_id`".to_owned())
            }
        }
    }

    fn place(&self, column: Column) -> Option<usize> {
        self.places[column as usize]
    }
}

/// `power.draw [W]` as its two parts.
fn name_and_unit(cell: &str) -> (&str, &str) {
    match cell.trim().split_once(" [") {
        Some((name, unit)) => (name, unit.trim_end_matches(']')),
        None => (cell.trim(), ""),
    }
}

/// The cells of one row, by column.
struct Cells<'h, 'a> {
    header: &'h Header,
    cells: Vec<&'a str>,
}

impl<'h, 'a> Cells<'h, 'a> {
    fn of(header: &'h Header, line: &'a str) -> Cells<'h, 'a> {
        Cells { header, cells: line.split(',').map(str::trim).collect() }
    }

    /// A cell without its unit.
    fn text(&self, column: Column) -> Option<&'a str> {
        let cell = *self.cells.get(self.header.place(column)?)?;
        let (_, unit, _) = COLUMNS[column as usize];
        let bare = if unit.is_empty() { None } else { cell.strip_suffix(unit) };
        Some(bare.unwrap_or(cell).trim_end())
    }

    fn read<T>(&self, column: Column, read: impl Fn(&str) -> Reading<T>) -> Reading<T> {
        self.text(column).map_or(Absent(Absence::NotRecorded), read)
    }

    /// How this row names its GPU; absent where the card could not say.
    fn identity(&self) -> Reading<UnitUuid> {
        let named = |name: &str| UnitUuid::new(&format!("GPU-{name}"));
        let known = |uuid: Result<UnitUuid, String>| uuid.map_or(Absent(Absence::NotUnderstood), Measured);
        if let Some(uuid) = self.text(Column::Uuid) {
            // A recorder may have shortened the names; a card's complaint in brackets is none.
            return known(UnitUuid::new(uuid).or_else(|_| named(uuid)));
        }
        if self.header.place(Column::Index).is_some() {
            return self.read(Column::Index, number::<u32>).and_then(|n| known(named(&format!("index-{n}"))));
        }
        let pci = self.text(Column::Pci).and_then(|text| PciAddress::parse(text).ok());
        pci.map_or(Absent(Absence::NotUnderstood), |pci| known(named(&pci.as_str().replace([':', '.'], "-"))))
    }
}

/// `2026/11/29 13:25:38.123`, as milliseconds; also as ISO 8601 writes it.
fn moment(text: &str) -> Option<i64> {
    let forms = ["%Y/%m/%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"];
    let at = forms.iter().find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())?;
    Some(at.and_utc().timestamp_millis())
}

impl<'a> Recording<'a> {
    /// Reads a recording's text.
    ///
    /// # Errors
    ///
    /// The first line that cannot be understood, with its number. A last line that was cut off is left out; a row
    /// of a card that cannot even say its name is nobody's.
    pub fn read(text: &'a str) -> Result<Recording<'a>, String> {
        let text = text.trim_start_matches('\u{feff}');
        let lines = text.lines().map(str::trim).zip(1..);
        let mut lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with(WARNING)).peekable();
        let (first, number) = lines.next().ok_or("it is empty; a header and rows are needed")?;
        let header = Header::read(first).map_err(|why| format!("line {number}: {why}"))?;
        let (mut gpus, mut places) = (Vec::new(), HashMap::new());
        while let Some((line, number)) = lines.next() {
            let cells = Cells::of(&header, line);
            let cut = lines.peek().is_none() && !text.ends_with('\n') && cells.cells.len() < header.cells;
            if line != header.text && !cut {
                take(&cells, line, &mut gpus, &mut places).map_err(|why| format!("line {number}: {why}"))?;
            }
        }
        match gpus.is_empty() {
            true => Err("no row of any GPU".to_owned()),
            false => Ok(Recording { header, gpus }),
        }
    }

    /// Everything that one row said of its GPU.
    pub fn observation(&self, row: &Row) -> Observation {
        let cells = Cells::of(&self.header, row.line);
        let excludes = cells.text(Column::Driver).is_some_and(excludes_reserved);
        let memory = match (cells.text(Column::MemUsed), cells.text(Column::MemTotal)) {
            (Some(used), Some(total)) => memory(used, total, excludes),
            _ => Absent(Absence::NotRecorded),
        };
        let compute = |text: &str| number(text).map(|compute| ProcessCount { compute, graphics: 0 });
        Readings {
            sm_util: row.sm_util,
            mem_util: row.mem_util,
            sm_peak: Absent(Absence::NotRecorded),
            mem_peak: Absent(Absence::NotRecorded),
            memory,
            power: row.power,
            power_limit: cells.read(Column::Limit, watts).plausible(|l| l.0 > 0),
            energy: Absent(Absence::NotRecorded),
            sm_clock: cells.read(Column::Clock, number).map(Megahertz),
            sm_clock_max: cells.read(Column::ClockMax, number).map(Megahertz),
            temperature: cells.read(Column::Temperature, temperature),
            clocks_event: cells.read(Column::Reasons, clocks_event),
            mig: cells.read(Column::Mig, mig_mode),
            processes: cells.read(Column::Processes, compute),
            fields: Fields::absent(Absence::NotRecorded),
        }
    }

    /// How many processes held the card's device file open, where somebody recorded that too.
    pub fn holders(&self, row: &Row) -> Reading<u32> {
        Cells::of(&self.header, row.line).read(Column::Holders, number)
    }

    /// The driver's version, as one row says it.
    pub fn driver(&self, row: &Row) -> Reading<String> {
        Cells::of(&self.header, row.line).read(Column::Driver, |text| Measured(text.to_owned()))
    }
}

/// Puts one row where it belongs.
fn take<'a>(
    cells: &Cells<'_, 'a>,
    line: &'a str,
    gpus: &mut Vec<Gpu<'a>>,
    places: &mut HashMap<UnitUuid, usize>,
) -> Result<(), String> {
    if cells.cells.len() != cells.header.cells {
        return Err(format!("{} cells, the header names {}", cells.cells.len(), cells.header.cells));
    }
    let said = cells.text(Column::Timestamp).unwrap_or("");
    let at_ms = moment(said).ok_or_else(|| {
        format!("`{}` is no time; expected one like `2026/11/29 13:25:38.123`", said.escape_debug())
    })?;
    let Measured(uuid) = cells.identity() else {
        return Ok(());
    };
    let place = *places.entry(uuid.clone()).or_insert(gpus.len());
    if place == gpus.len() {
        let index = match cells.read(Column::Index, number) {
            Measured(index) => NvmlIndex(index),
            Absent(_) => NvmlIndex(place as u32),
        };
        let name = cells.read(Column::Name, |text| Measured(text.to_owned()));
        gpus.push(Gpu { unit: UnitRef { uuid, index, name }, rows: Vec::new() });
    }
    let rows = &mut gpus[place].rows;
    // Of two rows of one moment the later one speaks.
    rows.pop_if(|before| before.at_ms == at_ms);
    if rows.last().is_some_and(|before| at_ms < before.at_ms) {
        return Err(format!(
            "`{said}` is earlier than the row before of the same GPU: two recordings, or a clock set back; \
             split the file there"
        ));
    }
    rows.push(Row {
        at_ms,
        sm_util: cells.read(Column::SmUtil, percent),
        mem_util: cells.read(Column::MemUtil, percent),
        power: cells.read(Column::Power, watts),
        line,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MigMode;
    use crate::units::{Celsius, ClocksEventMask};

    const HEADER: &str = "timestamp, uuid, utilization.gpu [%], power.draw [W], processes";

    fn refusal(text: &str) -> String {
        Recording::read(text).err().expect("a refusal")
    }

    fn one(text: &str) -> Observation {
        let recording = Recording::read(text).unwrap();
        recording.observation(&recording.gpus[0].rows[0])
    }

    #[test]
    fn a_row_is_read_with_and_without_units_in_any_order() {
        let with = "power.limit [W], timestamp, index, utilization.memory [%], fan.speed [%], memory.total [MiB], \
                    memory.used [MiB], clocks_event_reasons.active, utilization.gpu [%], temperature.gpu, \
                    mig.mode.current, enforced.power.limit [W], clocks.current.sm [MHz], processes\n\
                    700.00 W, 2026/11/29 13:25:38.123, 3, 40 %, [N/A], 81559 MiB, 71680 MiB, 0x0000000000000004, \
                    97 %, 64, Disabled, 650.00 W, 1755 MHz, 2\n";
        let seen = one(with);
        assert_eq!(seen.sm_util, Measured(Percent::new(97).unwrap()));
        assert_eq!(seen.mem_util, Measured(Percent::new(40).unwrap()));
        assert_eq!(seen.power_limit, Measured(Milliwatts(650_000)), "the enforced one");
        assert_eq!(seen.sm_clock, Measured(Megahertz(1755)));
        assert_eq!(seen.temperature, Measured(Celsius(64)));
        assert_eq!(seen.clocks_event, Measured(ClocksEventMask(4)));
        assert_eq!(seen.mig, Measured(MigMode::Disabled));
        assert_eq!(seen.processes, Measured(ProcessCount { compute: 2, graphics: 0 }));
        assert_eq!(seen.memory.map(|m| m.used.0 >> 20), Measured(71_680));
        let nounits = [" %,", " MiB,", " W,", " MHz,"].iter().fold(with.to_owned(), |t, u| t.replace(u, ","));
        assert_eq!(one(&nounits), seen);
    }

    #[test]
    fn a_column_that_is_not_there_was_not_recorded_and_a_word_is_a_reason() {
        // influxdata/telegraf#7659, microsoft/pai#949 (NR-08): one such field lost the whole sample.
        let row = |util: &str| format!("{HEADER}\n2026/11/29 13:25:38.123, GPU-a, {util}, [N/A], \n");
        let table = [
            ("[N/A]", Absence::NotSupported),
            ("[Not Supported]", Absence::NotSupported),
            ("[Unknown Error]", Absence::Transient),
            ("[GPU is lost]", Absence::GpuLost),
            ("[Something New]", Absence::NotUnderstood),
            ("", Absence::NotUnderstood),
            ("101 %", Absence::Implausible),
        ];
        for (word, why) in table {
            assert_eq!(one(&row(word)).sm_util, Absent(why), "{word:?}");
        }
        let seen = one(&row("0 %"));
        assert_eq!(seen.sm_util, Measured(Percent::new(0).unwrap()));
        assert_eq!(seen.power, Absent(Absence::NotSupported));
        assert_eq!(seen.mem_util, Absent(Absence::NotRecorded));
        assert_eq!(seen.memory, Absent(Absence::NotRecorded));
        assert_eq!(seen.processes, Absent(Absence::NotUnderstood));
    }

    #[test]
    fn a_gpu_is_its_uuid_else_its_index_else_its_address() {
        let table = [
            ("uuid, index", "GPU-a, 5", "GPU-a", 5),
            ("uuid", "3", "GPU-3", 0),
            ("index, pci.bus_id", "5, 00000000:9B:00.0", "GPU-index-5", 5),
            ("pci.bus_id", "00000000:9B:00.0", "GPU-0000-9b-00-0", 0),
        ];
        for (names, cells, uuid, index) in table {
            let text = format!("timestamp, {names}\n2026/11/29 13:25:38.123, {cells}\n");
            let unit = &Recording::read(&text).unwrap().gpus[0].unit;
            assert_eq!((unit.uuid.as_str(), unit.index.0), (uuid, index));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        let row = "2026/11/29 13:25:38.123, GPU-a, 0 %, 70 W, 1";
        let table = [
            (String::new(), "it is empty"),
            (format!("{row}\n"), "line 1: a row stands where the header should"),
            ("a, b\n".to_owned(), "line 1: no column `timestamp`"),
            ("timestamp, name\n".to_owned(), "line 1: no column says whose a row is"),
            (
                "timestamp, uuid, power.draw [mW]\n".to_owned(),
                "line 1: `power.draw` is in `mW`, expected `W`",
            ),
            (format!("{HEADER}\n"), "no row of any GPU"),
            (format!("{HEADER}\n\n{row}, 2\n"), "line 3: 6 cells, the header names 5"),
            (format!("{HEADER}\nUnable to determine\n{row}\n"), "line 2: 1 cells, the header names 5"),
            (format!("{HEADER}\n29.11.2026, GPU-a, 0, 0, 0\n"), "line 2: `29.11.2026` is no time"),
            // A clock set back for daylight saving; only differences of times count.
            (
                format!("{HEADER}\n{row}\n2026/11/29 12:25:38.123, GPU-a, 0 %, 70 W, 1\n"),
                "line 3: `2026/11/29 12:25:38.123` is earlier",
            ),
        ];
        for (text, wanted) in table {
            let why = refusal(&text);
            assert!(why.starts_with(wanted), "{text:?}: {why}");
        }
    }

    #[test]
    fn what_a_recorder_leaves_between_and_after_its_rows_is_no_row() {
        let text = format!(
            "\u{feff}{HEADER}\r\n2026/11/29 13:25:38.123, GPU-a, 0 %, 70 W, 1\r\n{HEADER}\r\n\r\n\
             WARNING: infoROM is corrupted at gpu 0000:1A:00.0\r\n\
             2026/11/29 13:25:53.123, [GPU is lost], [GPU is lost], [GPU is lost], 0\r\n\
             2026/11/29 13:25:53.123, GPU-a, 0 %, 70 W, 1\r\n2026/11/29 13:26:0"
        );
        let recording = Recording::read(&text).unwrap();
        assert_eq!(recording.gpus.len(), 1);
        let times: Vec<i64> = recording.gpus[0].rows.iter().map(|r| r.at_ms).collect();
        assert_eq!(times[1] - times[0], 15_000);
        assert_eq!(times.len(), 2);
    }
}
