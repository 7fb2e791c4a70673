//! Observe or enforce. The permit to hurt is made here and nowhere else.

use serde::{Deserialize, Serialize};

/// What the configuration allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Look, remember, alert. Never drain, cancel or signal.
    Observe,
    /// Also act, as far as the stages say.
    Enforce,
}

/// Proof that the configuration says `enforce`. Whatever can hurt needs one.
///
/// It cannot be forged: its field is private and [`Mode::permit`] is its only maker.
///
/// ```compile_fail,E0423
/// let forged = gpu_reaper_hc::mode::EnforcePermit(());
/// ```
///
/// Nor copied, nor made from nothing:
///
/// ```compile_fail,E0277
/// fn from_nothing<T: Default>() -> T { T::default() }
/// let forged: gpu_reaper_hc::mode::EnforcePermit = from_nothing();
/// ```
///
/// ```
/// use gpu_reaper_hc::mode::Mode;
/// assert!(Mode::Observe.permit().is_none());
/// assert!(Mode::Enforce.permit().is_some());
/// ```
#[derive(Debug)]
pub struct EnforcePermit(());

impl Mode {
    /// A permit under `enforce`, nothing under `observe`.
    pub fn permit(self) -> Option<EnforcePermit> {
        match self {
            Mode::Observe => None,
            Mode::Enforce => Some(EnforcePermit(())),
        }
    }
}
