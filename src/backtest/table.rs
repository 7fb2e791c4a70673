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
            return known(UnitUuid::new(uuid));
        }
        if self.header.place(Column::Index).is_some() {
            return self.read(Column::Index, number::<u32>).and_then(|n| known(named(&format!("index-{n}"))));
        }
        let pci = self.text(Column::Pci).and_then(|text| PciAddress::parse(text).ok());
        pci.map_or(Absent(Absence::NotUnderstood), |pci| known(named(&pci.as_str().replace([':', '.'], "-"))))
    }
}

/// `2026/11/29 13:25:38.123`, as milliseconds.
fn moment(text: &str) -> Option<i64> {
    let at = NaiveDateTime::parse_from_str(text, "%Y/%m/%d %H:%M:%S%.f").ok()?;
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
    if rows.last().is_some_and(|before| at_ms <= before.at_ms) {
        return Err(format!(
            "`{said}` is not later than the row before of the same GPU: two recordings, or a clock set back; \
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
