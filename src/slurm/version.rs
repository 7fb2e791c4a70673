//! Which Slurm this is, as far as it decides what can be asked: one local command a process (no question to
//! slurmctld), and only once something depends on it. A version that is not understood counts as the oldest.

use super::Slurm;
use super::command::Program;

/// A release line: `24.11` is (24, 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u16, u16);

impl Version {
    /// What an unknown one is taken for.
    const OLDEST: Version = Version(0, 0);

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

impl Slurm {
    /// Asked once.
    pub(super) fn version(&self) -> Version {
        let ask = || self.commands.run(Program::Scontrol, &["--version"]);
        *self
            .version
            .get_or_init(|| ask().ok().and_then(|text| Version::parse(&text)).unwrap_or(Version::OLDEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_not_understood_is_the_oldest_and_a_later_one_keeps_what_came() {
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
            let version = version.unwrap_or(Version::OLDEST);
            let does = [version.shows_jobs_in_json(), version.filters_at_slurmctld(), version.takes_sluids()];
            assert_eq!(does, can, "{text:?}");
        }
    }
}
