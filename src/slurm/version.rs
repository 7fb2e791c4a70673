//! Which Slurm this is, as far as it decides what can be asked: one local command a process (no question to
//! slurmctld), and only once something depends on it. One that is not known is not the oldest: a question may then be
//! put as every version takes it, a deed would silently lose what binds it to its run.

use super::command::Program;
use super::{Answer, NoAnswer, Slurm, misread};

/// A release line: `24.11` is (24, 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u16, u16);

impl Version {
    /// `scontrol --json show job` (22.05 knows no such option).
    pub(super) fn shows_jobs_in_json(self) -> bool {
        self >= Version(23, 2)
    }

    /// `scancel --ctld`: slurmctld itself compares the job with the filters, under its lock.
    pub(super) fn filters_at_slurmctld(self) -> bool {
        self >= Version(23, 11)
    }

    /// Commands take a SLUID where they take a job id.
    pub(super) fn takes_sluids(self) -> bool {
        self >= Version(26, 5)
    }

    /// `slurm 24.11.5`, Debian's `slurm-wlm 22.05.8`.
    fn parse(text: &str) -> Option<Version> {
        let (name, number) = text.lines().next()?.split_once(' ')?;
        let mut parts = number.split(['.', '-', ' ']);
        let mut part = || parts.next().filter(|p| p.len() == 2).and_then(|p| p.parse().ok());
        let version = Version(part()?, part()?);
        name.starts_with("slurm").then_some(version)
    }
}

/// `24.11.5` as (24, 11).
pub fn release_of(number: &str) -> Option<(u16, u16)> {
    Version::parse(&format!("slurm {number}")).map(|Version(year, month)| (year, month))
}

impl Slurm {
    /// Which Slurm its commands are: (24, 11). Asks nobody else.
    pub fn release(&self) -> Answer<(u16, u16)> {
        self.version().map(|Version(year, month)| (year, month)).map_err(Clone::clone)
    }

    /// Asked once, also where there was no answer: each try may take as long as a command may.
    pub(super) fn version(&self) -> Result<Version, &NoAnswer> {
        let ask = || {
            let text = self.commands.run(Program::Scontrol, &["--version"])?;
            Version::parse(&text).ok_or_else(|| misread(Program::Scontrol, format!("version `{text}`")))
        };
        self.version.get_or_init(ask).as_ref().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_not_understood_is_none_and_a_later_one_keeps_what_came() {
        let table = [
            ("slurm-wlm 22.05.8\n", Some(Version(22, 5)), [false, false, false]),
            ("slurm 23.02.0\n", Some(Version(23, 2)), [true, false, false]),
            ("slurm 23.11.0-0rc1\n", Some(Version(23, 11)), [true, true, false]),
            ("slurm-wlm 24.11.5\n", Some(Version(24, 11)), [true, true, false]),
            ("slurm-wlm 26.05.5", Some(Version(26, 5)), [true, true, true]),
            ("slurm 27.11.0\n", Some(Version(27, 11)), [true, true, true]),
            ("slurm 2.6.1", None, [false; 3]),
            ("slurm next", None, [false; 3]),
            ("", None, [false; 3]),
            ("pbs 24.11.5", None, [false; 3]),
        ];
        for (text, want, can) in table {
            let version = Version::parse(text);
            assert_eq!(version, want, "{text:?}");
            let does = [Version::shows_jobs_in_json, Version::filters_at_slurmctld, Version::takes_sluids];
            assert_eq!(does.map(|does| version.is_some_and(does)), can, "{text:?}");
        }
    }
}
