//! What nvidia-smi prints, turned into readings. Text in, values out: no program is started here, and words
//! in place of a number become reasons.

use crate::gpu::processes::vetted;
use crate::model::*;
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::*;
use std::str::FromStr;

/// The name comes last: it may hold the separator.
pub(super) const COLUMNS: &str = "driver_version,index,uuid,pci.bus_id,mig.mode.current,\
utilization.gpu,utilization.memory,memory.used,memory.total,power.draw,enforced.power.limit,\
clocks.sm,clocks.max.sm,temperature.gpu,REASONS,name";
const COLUMN_COUNT: usize = 16;
/// One process a row.
pub(super) const PROCESS_COLUMNS: &str = "gpu_uuid,pid,used_memory";

/// Lines that hold an answer.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("WARNING:"))
}

pub(super) fn gpus(text: &str) -> Result<(Reading<String>, Vec<UnitSample>), Absence> {
    let mut driver = Absent(Absence::NoData);
    let mut units = Vec::new();
    for (place, row) in rows(text).enumerate() {
        let cells: Vec<&str> = row.splitn(COLUMN_COUNT, ',').map(str::trim).collect();
        let cells: [&str; COLUMN_COUNT] = cells.try_into().map_err(|_| Absence::NotUnderstood)?;
        if driver.measured().is_none() {
            driver = word(cells[0]);
        }
        units.push(unit(place as u32, &cells, excludes_reserved(cells[0])));
    }
    Ok((driver, units))
}

/// By the driver's version: from 510 on `memory.used` leaves out the driver's reservation, which has a column of its
/// own.
pub fn excludes_reserved(driver: &str) -> bool {
    driver.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major >= 510)
}

fn unit(place: u32, cells: &[&str; COLUMN_COUNT], excludes_reserved: bool) -> UnitSample {
    let [
        _,
        index,
        uuid,
        pci,
        mig,
        sm,
        mem,
        used,
        total,
        power,
        limit,
        clock,
        clock_most,
        celsius,
        mask,
        name,
    ] = *cells;
    let identity = UnitIdentity {
        uuid: cell(uuid, |t| UnitUuid::new(t).ok()),
        kind: UnitKind::Gpu,
        // A lost card may not say even its index; its place in the list names it just as well.
        index: match number(index) {
            Measured(index) => NvmlIndex(index),
            Absent(_) => NvmlIndex(place),
        },
        minor: Absent(Absence::NotSupported),
        pci: cell(pci, |t| PciAddress::parse(t).ok()),
        name: word(name),
    };
    let readings = Readings {
        sm_util: percent(sm),
        mem_util: percent(mem),
        memory: memory(used, total, excludes_reserved),
        power: watts(power),
        power_limit: watts(limit).plausible(|l| l.0 > 0),
        sm_clock: number(clock).map(Megahertz),
        sm_clock_max: number(clock_most).map(Megahertz),
        temperature: temperature(celsius),
        clocks_event: clocks_event(mask),
        mig: mig_mode(mig),
        ..Readings::absent(Absence::NotSupported)
    };
    UnitSample { identity, readings }
}

pub(super) fn processes(text: &str) -> Result<Vec<(UnitUuid, GpuProcess)>, Absence> {
    // Drivers of the 3xx branches say in words that there is none.
    rows(text).filter(|row| !row.starts_with("No running")).map(process).collect()
}

fn process(row: &str) -> Result<(UnitUuid, GpuProcess), Absence> {
    let cells: Vec<&str> = row.split(',').map(str::trim).collect();
    let [uuid, pid, memory] = cells[..] else {
        return Err(Absence::NotUnderstood);
    };
    let settled = |reading: Reading<(UnitUuid, u32)>| match reading {
        Measured(both) => Ok(both),
        Absent(why) => Err(why),
    };
    let both = cell(uuid, |t| UnitUuid::new(t).ok()).and_then(|uuid| number(pid).map(|pid| (uuid, pid)));
    let (uuid, pid) = settled(both)?;
    let memory = number(memory).map(mebibytes);
    Ok((uuid, GpuProcess { pid, kind: ProcessKind::Compute, memory }))
}

/// Gives each GPU its processes. A process on a GPU that was not listed leaves all lists not understood: some
/// GPU's list lacks it.
pub(super) fn assign(
    found: Result<Vec<(UnitUuid, GpuProcess)>, Absence>,
    units: &mut [UnitSample],
    is_there: impl Fn(u32) -> bool,
) {
    let known = |uuid: &UnitUuid, units: &[UnitSample]| {
        units.iter().any(|u| u.identity.uuid.measured() == Some(uuid))
    };
    let found = found.and_then(|all| match all.iter().all(|(uuid, _)| known(uuid, units)) {
        true => Ok(all),
        false => Err(Absence::NotUnderstood),
    });
    for unit in units {
        unit.readings.processes = match (&found, &unit.identity.uuid) {
            (Err(why), _) | (Ok(_), Absent(why)) => Absent(*why),
            (Ok(all), Measured(uuid)) => {
                let own = all.iter().filter(|(of, _)| of == uuid).map(|(_, process)| process.clone());
                vetted(own.collect(), &unit.readings.memory, &is_there)
            }
        };
    }
}

/// A cell: its value, the reason that stands in its place, or not understood.
fn cell<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Reading<T> {
    match (reason(text), parse(text)) {
        (Some(why), _) => Absent(why),
        (None, Some(value)) => Measured(value),
        (None, None) => Absent(Absence::NotUnderstood),
    }
}

/// What nvidia-smi writes where it has no value, in the spellings of drivers 384 to 610.
fn reason(text: &str) -> Option<Absence> {
    let bare = text.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    Some(match bare.as_str() {
        "n/a" | "not supported" | "requested functionality has been deprecated" => Absence::NotSupported,
        "unknown error" | "err!" => Absence::Transient,
        "insufficient permissions" | "gpu access blocked by the operating system" => Absence::NoPermission,
        "gpu is lost" => Absence::GpuLost,
        "gpu requires reset" => Absence::ResetRequired,
        "not found" | "no data" => Absence::NoData,
        _ if text.is_empty() || text.starts_with('[') => Absence::NotUnderstood,
        _ => return None,
    })
}

/// A whole number without its unit, or why there is none.
pub fn number<T: FromStr>(text: &str) -> Reading<T> {
    cell(text, |t| t.parse().ok())
}

fn word(text: &str) -> Reading<String> {
    cell(text, |t| Some(t.to_owned()))
}

/// A utilization.
pub fn percent(text: &str) -> Reading<Percent> {
    number(text).and_then(|n| Percent::new(n).map_or(Absent(Absence::Implausible), Measured))
}

/// MiB held and present.
pub fn memory(used: &str, total: &str, excludes_reserved: bool) -> Reading<Memory> {
    let total = number(total).map(mebibytes).plausible(|t| t.0 > 0);
    let memory = total.and_then(|total| {
        number(used).map(|used| Memory { used: mebibytes(used), total, excludes_reserved })
    });
    memory.plausible(|m| m.used <= m.total)
}

/// Watts with a fraction.
pub fn watts(text: &str) -> Reading<Milliwatts> {
    cell(text, milliwatts)
}

/// Degrees Celsius.
pub fn temperature(text: &str) -> Reading<Celsius> {
    number(text).map(Celsius).plausible(|c| c.0 <= 150)
}

/// The mask of clocks-event reasons, in hexadecimal.
pub fn clocks_event(text: &str) -> Reading<ClocksEventMask> {
    cell(text, |t| u64::from_str_radix(t.strip_prefix("0x")?, 16).ok()).map(ClocksEventMask)
}

/// Enabled or disabled.
pub fn mig_mode(text: &str) -> Reading<MigMode> {
    cell(text, |t| match t {
        "Enabled" => Some(MigMode::Enabled),
        "Disabled" => Some(MigMode::Disabled),
        _ => None,
    })
}

fn mebibytes(n: u32) -> MemoryBytes {
    MemoryBytes(u64::from(n) << 20)
}

/// No card draws ten kilowatts.
fn milliwatts(text: &str) -> Option<Milliwatts> {
    let watts = text.parse::<f64>().ok().filter(|w| (0.0..10_000.0).contains(w))?;
    Some(Milliwatts((watts * 1000.0).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "550.163.01, 0, GPU-a, 00000000:1A:00.0, Disabled, 97, 60, 71680, 81559, 690.50, \
                       700.00, 1755, 1980, 64, 0x0000000000000004, NVIDIA H100 80GB HBM3";

    fn row(cells: &[(usize, &str)]) -> String {
        let mut row: Vec<String> = ROW.splitn(COLUMN_COUNT, ", ").map(str::to_owned).collect();
        cells.iter().for_each(|(at, text)| row[*at] = (*text).to_owned());
        row.join(", ")
    }

    fn one(text: &str) -> UnitSample {
        let (_, units) = gpus(text).unwrap();
        units.into_iter().next().unwrap()
    }

    #[test]
    fn a_row_is_read_with_its_units() {
        let unit = one(ROW);
        assert_eq!(unit.identity.pci, Measured(PciAddress::parse("0000:1a:00.0").unwrap()));
        assert_eq!(unit.readings.sm_util, Measured(Percent::new(97).unwrap()));
        assert_eq!(unit.readings.power, Measured(Milliwatts(690_500)));
        assert_eq!(unit.readings.clocks_event, Measured(ClocksEventMask(4)));
        let memory = Memory { used: mebibytes(71_680), total: mebibytes(81_559), excludes_reserved: true };
        assert_eq!(unit.readings.memory, Measured(memory));
        assert_eq!(unit.readings.energy, Absent(Absence::NotSupported));
        assert_eq!(unit.readings.sm_peak, Absent(Absence::NotSupported));
    }

    #[test]
    fn a_comma_in_the_name_shifts_no_column() {
        let unit = one(&row(&[(15, "NVIDIA Odd, Name, 80GB")]));
        assert_eq!(unit.identity.name, Measured("NVIDIA Odd, Name, 80GB".into()));
        assert_eq!(unit.readings.temperature, Measured(Celsius(64)));
    }

    #[test]
    fn words_in_place_of_a_number_are_reasons_never_zero() {
        // influxdata/telegraf#7659, microsoft/pai#949 (NR-08): one such field lost the whole sample.
        let table = [
            ("[N/A]", Absence::NotSupported),
            ("N/A", Absence::NotSupported),
            ("[Not Supported]", Absence::NotSupported),
            ("[Requested functionality has been deprecated]", Absence::NotSupported),
            ("[Unknown Error]", Absence::Transient),
            ("[Unknown error]", Absence::Transient),
            ("ERR!", Absence::Transient),
            ("[Insufficient Permissions]", Absence::NoPermission),
            ("[GPU access blocked by the operating system]", Absence::NoPermission),
            ("[GPU is lost]", Absence::GpuLost),
            ("[GPU requires reset]", Absence::ResetRequired),
            ("[Something New]", Absence::NotUnderstood),
            ("", Absence::NotUnderstood),
            ("-5", Absence::NotUnderstood),
            ("nan", Absence::NotUnderstood),
        ];
        for (text, why) in table {
            for at in 5..=14 {
                let readings = one(&row(&[(at, text)])).readings;
                let absences = [
                    readings.sm_util.absence(),
                    readings.mem_util.absence(),
                    readings.memory.absence(),
                    readings.memory.absence(),
                    readings.power.absence(),
                    readings.power_limit.absence(),
                    readings.sm_clock.absence(),
                    readings.sm_clock_max.absence(),
                    readings.temperature.absence(),
                    readings.clocks_event.absence(),
                ];
                assert_eq!(absences[at - 5], Some(why), "{text:?} in column {at}");
                let lost = absences.iter().flatten().count();
                assert_eq!(
                    lost,
                    if matches!(at, 7 | 8) { 2 } else { 1 },
                    "{text:?} in column {at} hides another"
                );
            }
        }
    }

    #[test]
    fn a_card_without_a_name_for_itself_keeps_its_place() {
        let lost: Vec<(usize, &str)> = (1..15).map(|at| (at, "[GPU is lost]")).collect();
        let text = format!("{ROW}\n{}\nWARNING: infoROM is corrupted at gpu 0000:1A:00.0\n", row(&lost));
        let (driver, units) = gpus(&text).unwrap();
        assert_eq!(driver, Measured("550.163.01".into()));
        assert_eq!(units.len(), 2);
        assert_eq!(units[1].identity.index, NvmlIndex(1));
        assert_eq!(units[1].identity.uuid, Absent(Absence::GpuLost));
        assert_eq!(gpus("Failed to say anything"), Err(Absence::NotUnderstood));
    }

    #[test]
    fn processes_go_to_their_gpu_or_every_list_is_absent() {
        let units = || gpus(&format!("{ROW}\n{}", row(&[(1, "1"), (2, "GPU-b")]))).unwrap().1;
        let lists = |text: &str| {
            let mut units = units();
            assign(processes(text), &mut units, |_| true);
            units.into_iter().map(|u| u.readings.processes.map(|l| l.len())).collect::<Vec<_>>()
        };
        let absent = |why| vec![Absent(why), Absent(why)];
        let table = [
            ("", vec![Measured(0), Measured(0)]),
            ("No running compute processes found\n", vec![Measured(0), Measured(0)]),
            ("GPU-b, 7, 500\nGPU-b, 8, [N/A]\n", vec![Measured(0), Measured(2)]),
            ("GPU-b, 0, 500\n", vec![Measured(0), Absent(Absence::Implausible)]),
            ("GPU-b, 7, 99999999\n", vec![Measured(0), Absent(Absence::Implausible)]),
            ("GPU-c, 7, 500\n", absent(Absence::NotUnderstood)),
            ("GPU-b, 7\n", absent(Absence::NotUnderstood)),
            ("GPU-b, [Insufficient Permissions], 5\n", absent(Absence::NoPermission)),
        ];
        for (text, want) in table {
            assert_eq!(lists(text), want, "{text:?}");
        }
    }
}
