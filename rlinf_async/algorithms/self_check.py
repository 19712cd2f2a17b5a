"""The first-update check: before any step, new data of this version has a ratio of 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

log = structlog.get_logger()

LOG_RATIO_TOLERANCE = 1e-5
"""Of the first log-ratio, relative to max(1, |logp|): float32 rounding stays below it."""


def first_log_ratio(
    logp: npt.NDArray[np.float32],
    logp_old: npt.NDArray[np.float32],
    acted: npt.NDArray[Any],
    version: int,
) -> dict[str, float]:
    """The largest |log-ratio| over the entries that `version` acted, and a warning if it is not 0.

    Args:
        logp: log-probs [n] that the learner computes before its first step.
        logp_old: log-probs [n] that were stored when acting.
        acted: whether `version` itself acted, [n] bool; where none did, there is nothing to check.
    """
    if not acted.any():
        return {}
    difference = np.abs(logp - logp_old)[acted]
    excess = difference / np.maximum(1.0, np.abs(logp_old[acted]))
    if not excess.max() <= LOG_RATIO_TOLERANCE:
        log.warning(
            "first_log_ratio_was_not_zero",
            version=version,
            largest=float(difference.max()),
            allowed=LOG_RATIO_TOLERANCE,
            likely="the policy computes other log-probs when acting than when learning: dropout, "
            "noise, or an action that was clipped before it was stored",
        )
    return {"first_log_ratio_max": float(difference.max())}
