//! What the worker says on its pipe, piece by piece, so that GPUs already read survive a later hang. Bytes
//! are never guessed at: a frame that is torn or changed makes the whole answer "not understood".
//!
//! A frame is the length of its body, a checksum of its body (both 32 bits, little-endian), and the body, one
//! [`Piece`] in postcard's form. Both ends are the same program, forked: there are no versions to agree on.

use super::unread;
use crate::model::{Field, GpuReport, UnitIdentity, UnitKind, UnitSample};
use crate::reading::Absence;
use crate::reading::Reading::{self, Absent, Measured};
use crate::units::{NvmlIndex, Percent};
use serde::{Deserialize, Serialize};

/// What is known before the first GPU is touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Driver version.
    pub driver: Reading<String>,
    /// How many GPUs the driver lists; as many follow, each with its instances.
    pub gpus: u32,
}

/// What GPM measured of one unit between two samples: shares of that time, in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// In which an SM was active.
    pub sm: Reading<u64>,
    /// In which a tensor pipe was active.
    pub tensor: Reading<u64>,
    /// Of the memory bandwidth, the share used.
    pub dram: Reading<u64>,
}

impl Activity {
    /// For an instance it is also the utilization that NVML refuses to give: whole percents, rounded up.
    fn write_to(self, unit: &mut UnitSample) {
        let readings = &mut unit.readings;
        readings.fields.set(Field::GpmSmActive, self.sm);
        readings.fields.set(Field::GpmTensorActive, self.tensor);
        readings.fields.set(Field::GpmDramActive, self.dram);
        if let UnitKind::Mig { .. } = unit.identity.kind {
            readings.sm_util = percent(self.sm);
            readings.mem_util = percent(self.dram);
        }
    }
}

/// States of a GPU that change rarely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct States {
    /// 0 off, 1 on.
    pub persistence_mode: Reading<u64>,
    /// How far it has come into the NVLink fabric.
    pub fabric_state: Reading<u64>,
    /// How that ended.
    pub fabric_status: Reading<u64>,
    /// Links that are up.
    pub nvlink_active: Reading<u64>,
    /// Links that are down.
    pub nvlink_inactive: Reading<u64>,
}

impl States {
    fn write_to(self, unit: &mut UnitSample) {
        let fields = &mut unit.readings.fields;
        fields.set(Field::PersistenceMode, self.persistence_mode);
        fields.set(Field::FabricState, self.fabric_state);
        fields.set(Field::FabricStatus, self.fabric_status);
        fields.set(Field::NvlinkActive, self.nvlink_active);
        fields.set(Field::NvlinkInactive, self.nvlink_inactive);
    }
}

fn percent(hundredths: Reading<u64>) -> Reading<Percent> {
    hundredths.and_then(|n| match u32::try_from(n.div_ceil(100)).ok().and_then(Percent::new) {
        Some(percent) => Measured(percent),
        None => Absent(Absence::Implausible),
    })
}

/// One message.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and nearly all are units")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// Comes first. Absent: no GPU could be looked at, and nothing follows.
    Begin(Reading<Head>),
    /// One unit, as soon as it was read.
    Unit(UnitSample),
    /// What GPM measured of a unit told before.
    Activity {
        /// Its place among the units so far.
        unit: u32,
        /// What it did.
        activity: Activity,
    },
    /// The states of a unit told before.
    States {
        /// Its place among the units so far.
        unit: u32,
        /// All of them.
        states: States,
    },
    /// Better names of a unit told before.
    Identity {
        /// Its place among the units so far.
        unit: u32,
        /// All of them.
        identity: UnitIdentity,
    },
    /// Comes last: nothing is missing.
    End,
}

/// Bytes or an order of pieces that no worker of ours writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbled;

/// More GPUs than any node has: a count beyond it is a misread one.
pub const GPUS_MOST: u32 = 256;

const HEADER_BYTES: usize = 8;
/// A unit with the longest process list has about 100 kB.
const BODY_MOST_BYTES: usize = 1 << 20;

/// FNV-1a, 32 bits: it is to catch accidents, nobody else can write to this pipe.
fn checksum(body: &[u8]) -> u32 {
    body.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The frame of one piece.
pub fn frame(piece: &Piece) -> Result<Vec<u8>, postcard::Error> {
    let mut frame = postcard::to_extend(piece, vec![0; HEADER_BYTES])?;
    let (header, body) = frame.split_at_mut(HEADER_BYTES);
    header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[4..].copy_from_slice(&checksum(body).to_le_bytes());
    Ok(frame)
}

/// Bytes as they arrive, cut into pieces.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// What was read from the pipe.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether every byte so far belonged to a whole frame.
    pub fn at_boundary(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next whole piece; `None`: more bytes are needed.
    pub fn piece(&mut self) -> Result<Option<Piece>, Garbled> {
        let Some((header, rest)) = self.bytes.split_at_checked(HEADER_BYTES) else {
            return Ok(None);
        };
        let number =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (length, sum) = (number(0) as usize, number(4));
        if length > BODY_MOST_BYTES {
            return Err(Garbled);
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        if checksum(body) != sum {
            return Err(Garbled);
        }
        let (piece, left) = postcard::take_from_bytes(body).map_err(|_| Garbled)?;
        if !left.is_empty() {
            return Err(Garbled);
        }
        self.bytes.drain(..HEADER_BYTES + length);
        Ok(Some(piece))
    }
}

/// The answer as it grows.
#[derive(Debug, Default)]
pub struct Assembly {
    head: Option<Reading<Head>>,
    units: Vec<UnitSample>,
    ended: bool,
}

impl Assembly {
    /// Takes the next piece; one out of order is refused.
    pub fn add(&mut self, piece: Piece) -> Result<(), Garbled> {
        match (piece, &self.head) {
            (Piece::Begin(head), None) if head.measured().is_none_or(|h| h.gpus <= GPUS_MOST) => {
                self.ended = head.measured().is_none();
                self.head = Some(head);
            }
            (Piece::Unit(unit), Some(Measured(_))) if !self.ended => self.units.push(unit),
            (Piece::Activity { unit, activity }, Some(Measured(_))) if !self.ended => {
                activity.write_to(self.told(unit)?);
            }
            (Piece::States { unit, states }, Some(Measured(_))) if !self.ended => {
                states.write_to(self.told(unit)?);
            }
            (Piece::Identity { unit, identity }, Some(Measured(_))) if !self.ended => {
                self.told(unit)?.identity = identity;
            }
            (Piece::End, Some(Measured(_))) if !self.ended => self.ended = true,
            _ => return Err(Garbled),
        }
        Ok(())
    }

    fn told(&mut self, unit: u32) -> Result<&mut UnitSample, Garbled> {
        self.units.get_mut(unit as usize).ok_or(Garbled)
    }

    /// Takes every whole piece that has arrived.
    pub fn take(&mut self, frames: &mut Frames) -> Result<(), Garbled> {
        while let Some(piece) = frames.piece()? {
            self.add(piece)?;
        }
        Ok(())
    }

    /// Whether nothing can follow.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The report. Where the end never came, a GPU that was announced and not delivered is absent with
    /// `missing`; so is the whole report where not even the announcement came.
    pub fn report(self, missing: Absence) -> Reading<GpuReport> {
        let head = match self.head {
            None => return Absent(missing),
            Some(Absent(why)) => return Absent(why),
            Some(Measured(head)) => head,
        };
        let mut units = self.units;
        let delivered = |units: &[UnitSample], index| {
            units.iter().any(|u| u.identity.kind == UnitKind::Gpu && u.identity.index == index)
        };
        for index in (0..head.gpus).map(NvmlIndex) {
            if !self.ended && !delivered(&units, index) {
                units.push(unread(index, missing));
            }
        }
        Measured(GpuReport { driver: head.driver, units })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MigMode, Readings};
    use crate::units::UnitUuid;
    use proptest::prelude::*;

    fn unit(index: u32) -> UnitSample {
        let mut readings = Readings::absent(Absence::NotSupported);
        readings.sm_util = Measured(Percent::new(index).unwrap());
        readings.mig = Measured(MigMode::Disabled);
        let uuid = Measured(UnitUuid::new(&format!("GPU-{index}")).unwrap());
        let known = unread(NvmlIndex(index), Absence::NoData).identity;
        UnitSample { identity: UnitIdentity { uuid, ..known }, readings }
    }

    fn begin(gpus: u32) -> Piece {
        Piece::Begin(Measured(Head { driver: Measured("580.95.05".into()), gpus }))
    }

    fn told(pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(|p| frame(p).unwrap()).collect()
    }

    /// The report of whatever part of `bytes` holds whole frames.
    fn heard(bytes: &[u8]) -> Result<Reading<GpuReport>, Garbled> {
        let (mut frames, mut assembly) = (Frames::default(), Assembly::default());
        frames.push(bytes);
        assembly.take(&mut frames)?;
        Ok(assembly.report(Absence::DeadlinePassed))
    }

    #[test]
    fn what_was_read_before_a_hang_survives_it() {
        // leptonai/gpud#117, NVIDIA/go-nvml#152 (FT-01): a call on one device never returns.
        let bytes = told(&[begin(3), Piece::Unit(unit(0)), Piece::Unit(unit(1))]);
        let Ok(Measured(report)) = heard(&bytes) else { panic!("a report") };
        assert_eq!(report.units, [unit(0), unit(1), unread(NvmlIndex(2), Absence::DeadlinePassed)]);
        assert_eq!(heard(&told(&[])), Ok(Absent(Absence::DeadlinePassed)));
        let refused = Piece::Begin(Absent(Absence::DriverNotLoaded));
        assert_eq!(heard(&told(&[refused])), Ok(Absent(Absence::DriverNotLoaded)));
    }

    const ACTIVITY: Activity =
        Activity { sm: Measured(30), tensor: Absent(Absence::NoData), dram: Measured(10_000) };

    const STATES: States = States {
        persistence_mode: Measured(1),
        fabric_state: Measured(3),
        fabric_status: Absent(Absence::NoData),
        nvlink_active: Measured(17),
        nvlink_inactive: Measured(1),
    };

    #[test]
    fn what_comes_later_completes_a_unit_and_is_not_waited_for() {
        let mut instance = unit(1);
        let parent = UnitUuid::new("GPU-0").unwrap();
        instance.identity.kind = UnitKind::Mig { parent, gi: 1, ci: 0 };
        instance.readings.sm_util = Absent(Absence::NotAsked);
        let before = [begin(2), Piece::Unit(unit(0)), Piece::Unit(instance.clone())];
        let Ok(Measured(early)) = heard(&told(&before)) else { panic!("a report") };
        assert_eq!(early.units[..2], [unit(0), instance.clone()]);

        let later = [
            Piece::Activity { unit: 0, activity: ACTIVITY },
            Piece::Activity { unit: 1, activity: ACTIVITY },
            Piece::States { unit: 0, states: STATES },
            Piece::Identity { unit: 0, identity: unit(7).identity },
        ];
        let Ok(Measured(late)) = heard(&told(&[&before[..], &later[..]].concat())) else {
            panic!("a report")
        };
        for unit in &late.units[..2] {
            assert_eq!(unit.readings.fields.get(Field::GpmSmActive), Measured(30));
            assert_eq!(unit.readings.fields.get(Field::GpmTensorActive), Absent(Absence::NoData));
            assert_eq!(unit.readings.fields.get(Field::GpmDramActive), Measured(10_000));
        }
        assert_eq!(
            late.units[0].readings.sm_util,
            unit(0).readings.sm_util,
            "a whole GPU's stays NVML's own"
        );
        assert_eq!(late.units[1].readings.sm_util, Measured(Percent::new(1).unwrap()), "0.3 % is not 0");
        assert_eq!(late.units[1].readings.mem_util, Measured(Percent::new(100).unwrap()));
        assert_eq!(late.units[0].identity, unit(7).identity);
        let states = |n: usize| {
            use Field::*;
            [PersistenceMode, FabricState, FabricStatus, NvlinkActive, NvlinkInactive]
                .map(|field| late.units[n].readings.fields.get(field))
        };
        assert_eq!(states(0), [Measured(1), Measured(3), Absent(Absence::NoData), Measured(17), Measured(1)]);
        assert_eq!(states(1), [Absent(Absence::NotSupported); 5]);
    }

    #[test]
    fn pieces_arrive_whole_however_the_pipe_cuts_them() {
        let pieces = [begin(2), Piece::Unit(unit(0)), Piece::Unit(unit(1)), Piece::End];
        let mut frames = Frames::default();
        let mut seen = Vec::new();
        for byte in told(&pieces) {
            frames.push(&[byte]);
            seen.extend(frames.piece().unwrap());
        }
        assert_eq!(seen, pieces);
        assert!(frames.at_boundary());
    }

    #[test]
    fn pieces_out_of_order_are_not_believed() {
        let table = [
            vec![Piece::End],
            vec![Piece::Unit(unit(0))],
            vec![begin(1), begin(1)],
            vec![begin(1), Piece::End, Piece::Unit(unit(0))],
            vec![Piece::Begin(Absent(Absence::NoPermission)), Piece::Unit(unit(0))],
            vec![begin(GPUS_MOST + 1)],
            vec![Piece::Activity { unit: 0, activity: ACTIVITY }],
            vec![begin(1), Piece::Activity { unit: 0, activity: ACTIVITY }],
            vec![begin(1), Piece::States { unit: 0, states: STATES }],
            vec![Piece::States { unit: 0, states: STATES }],
            vec![begin(1), Piece::Unit(unit(0)), Piece::Identity { unit: 1, identity: unit(0).identity }],
            vec![begin(1), Piece::Unit(unit(0)), Piece::End, Piece::Activity { unit: 0, activity: ACTIVITY }],
        ];
        for pieces in table {
            assert_eq!(heard(&told(&pieces)), Err(Garbled), "{pieces:?}");
        }
    }

    #[test]
    fn a_changed_byte_never_becomes_another_report() {
        let bytes = told(&[begin(1), Piece::Unit(unit(0)), Piece::End]);
        let whole = heard(&bytes).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(report) = heard(&changed) {
                    // A longer length only asks for bytes that never come: what stood before it is still
                    // true.
                    let kept = report.measured().map(|r| r.units.as_slice());
                    let absent = [unread(NvmlIndex(0), Absence::DeadlinePassed)];
                    assert!(
                        kept.is_none() || kept == Some(&absent) || report == whole,
                        "byte {at} bit {bit}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_bring_the_reader_down(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = heard(&bytes);
        }
    }
}
