//! Readings of numbers as few bytes, and single ones found again in them. Makes no number of bytes that make no
//! sense.
//!
//! Reading after reading in varints, seven bits a byte, the lowest first. A value stands as the next higher number. 0
//! begins an absence: the reason's code and for how many readings in a row it holds follow. After 1, the value 0, so
//! does for how many it holds: most counters of a sound card stand there. Readings that were not recorded at the end
//! are left out, so that a list can grow there. A value that has no next higher number is implausible.

use super::Absence;
use super::Reading::{self, Absent, Measured};

/// All of them, up to the last that was recorded.
pub fn pack(all: &[Reading<u64>]) -> Vec<u8> {
    let recorded = |reading: &Reading<u64>| *reading != Absent(Absence::NotRecorded);
    let mut left = &all[..all.iter().rposition(recorded).map_or(0, |last| last + 1)];
    let mut bytes = Vec::with_capacity(96);
    while let Some(first) = left.first().map(|first| storable(*first)) {
        let alike = match first {
            Measured(0) | Absent(_) => left.iter().take_while(|r| storable(**r) == first).count(),
            Measured(_) => 1,
        };
        match first {
            Measured(value) => push(&mut bytes, value + 1),
            Absent(why) => {
                push(&mut bytes, 0);
                push(&mut bytes, why.code().unsigned_abs());
            }
        }
        if first.measured().is_none_or(|value| *value == 0) {
            push(&mut bytes, alike as u64);
        }
        left = &left[alike..];
    }
    bytes
}

fn storable(reading: Reading<u64>) -> Reading<u64> {
    reading.plausible(|value| *value < u64::MAX)
}

/// The one at a place, from 0.
pub fn find(bytes: &[u8], place: usize) -> Reading<u64> {
    let mut all = Unpack::new(bytes);
    let mut before = place as u64;
    loop {
        all.more();
        match before.checked_sub(all.alike) {
            Some(rest) => before = rest,
            None => return all.reading,
        }
    }
}

/// Takes packed readings one after the other; never ends: what is not there was not recorded, and from where the
/// bytes make no sense nothing was understood.
pub struct Unpack<'b> {
    bytes: &'b [u8],
    reading: Reading<u64>,
    alike: u64,
}

impl<'b> Unpack<'b> {
    /// From the first on.
    pub fn new(bytes: &'b [u8]) -> Unpack<'b> {
        Unpack { bytes, reading: Absent(Absence::NotRecorded), alike: 0 }
    }

    /// The next one.
    #[inline]
    pub fn take(&mut self) -> Reading<u64> {
        if self.alike == 0 {
            self.more();
        }
        self.alike -= 1;
        self.reading
    }

    #[inline]
    fn more(&mut self) {
        self.alike = 1;
        self.reading = match pull(&mut self.bytes) {
            Some(above @ 2..) => Measured(above - 1),
            Some(begins) => self.several(begins),
            None if self.bytes.is_empty() => self.rest(Absence::NotRecorded),
            None => self.rest(Absence::NotUnderstood),
        };
    }

    /// 0 and 1 begin several alike.
    fn several(&mut self, begins: u64) -> Reading<u64> {
        let reading = match begins {
            0 => match pull(&mut self.bytes).map(i64::try_from) {
                Some(Ok(code @ 1..)) => Absent(Absence::from_code(code)),
                _ => return self.rest(Absence::NotUnderstood),
            },
            _ => Measured(0),
        };
        match pull(&mut self.bytes) {
            Some(alike @ 1..) => self.alike = alike,
            _ => return self.rest(Absence::NotUnderstood),
        }
        reading
    }

    fn rest(&mut self, why: Absence) -> Reading<u64> {
        self.alike = u64::MAX;
        Absent(why)
    }
}

/// Writes a number as a varint.
pub fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a varint off the front. `None` where the number does not end, or is larger than any.
#[inline]
pub fn pull(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // Of the tenth byte one bit is left.
        if place == 9 && bits > 1 {
            return None;
        }
        number |= bits << (7 * place);
        if byte & 0x80 == 0 {
            *bytes = &bytes[place + 1..];
            return Some(number);
        }
    }
    None
}
