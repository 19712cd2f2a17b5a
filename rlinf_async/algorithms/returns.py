"""Returns and advantages over entries that may be masked, as pure numpy functions.

Axes: L entries in the order of time (chunk-steps, or the actions of all chunk-steps), T
chunk-steps, B slots, C actions of a chunk. What follows an entry is worth what `advantages` says.
Entries that are not valid are left out before any recursion: they have advantage and return 0, and
nothing passes through them but what the entry before and the entry after them say to each other.

Arguments are float32 or float64, results float32, and the recursions run in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.advantages import Bools, Float32, Float64, Floats

_non_finite_passes = np.errstate(invalid="ignore", over="ignore")


@_non_finite_passes
def masked_gae_advantages(
    reward_LB: Floats,
    valid_LB: Bools,
    terminated_LB: Bools,
    truncated_LB: Bools,
    value_LB: Floats,
    final_value_LB: Floats,
    *,
    gamma: float | Float64,
    lam: float,
) -> tuple[Float32, Float32]:
    """Advantages and returns of GAE (Schulman et al., 2016, eq. 16) over the valid entries, [L, B].

    Args:
        value_LB: [L+1, B], the value before each entry and after the last one.
        final_value_LB: [L, B], read only where an episode was truncated and not terminated.
        gamma: of the step behind an entry; a number, or one of each entry [L, B].
    """
    length, slots = reward_LB.shape
    _check_shapes(
        (length, slots), valid_LB, terminated_LB, truncated_LB, value_LB[:-1], final_value_LB
    )
    gamma_LB = np.broadcast_to(np.asarray(gamma, dtype=np.float64), (length, slots))
    advantage_LB = np.zeros((length, slots))
    next_value_B = value_LB[-1].astype(np.float64)
    next_advantage_B = np.zeros(slots)
    for entry in range(length - 1, -1, -1):
        valid_B, value_B = valid_LB[entry], value_LB[entry].astype(np.float64)
        cut_B = terminated_LB[entry] | truncated_LB[entry]
        follows_B = np.where(cut_B, final_value_LB[entry], next_value_B)
        follows_B = np.where(terminated_LB[entry], 0.0, follows_B)
        carried_B = np.where(cut_B, 0.0, lam * next_advantage_B)
        earned_B = reward_LB[entry] + gamma_LB[entry] * (follows_B + carried_B) - value_B
        advantage_LB[entry] = np.where(valid_B, earned_B, 0.0)
        next_advantage_B = np.where(valid_B, earned_B, next_advantage_B)
        next_value_B = np.where(valid_B, value_B, next_value_B)
    returns_LB = np.where(valid_LB, advantage_LB + value_LB[:-1], 0.0)
    return advantage_LB.astype(np.float32), returns_LB.astype(np.float32)


def action_gae_advantages(
    reward_TBC: Floats,
    executed_TB: npt.NDArray[np.int64],
    terminated_TB: Bools,
    truncated_TB: Bools,
    value_TBC: Floats,
    final_value_TB: Floats,
    *,
    gamma: float,
    lam: float,
) -> tuple[Float32, Float32]:
    """GAE with one entry of each action of a chunk: advantages and returns, [T, B, C].

    The values of a chunk's actions all come from its first observation; behind its last action
    stands the next chunk's first. `gamma` is of one simulator step.

    Args:
        executed_TB: [T, B], how many actions of the chunk were simulated; an episode ends with the
            last of them.
        value_TBC: [T+1, B, C]; of the last row only the first value counts.
        final_value_TB: [T, B], V(true last observation)[0]: read only where an episode was
            truncated and not terminated.
    """
    horizon, slots, chunk = reward_TBC.shape
    sub_steps = np.arange(chunk)
    last_TBC = sub_steps == executed_TB[..., None] - 1
    value_LB = np.concatenate([by_action(value_TBC[:-1]), value_TBC[-1:, :, 0]])
    found = masked_gae_advantages(
        by_action(reward_TBC),
        by_action(sub_steps < executed_TB[..., None]),
        by_action(last_TBC & terminated_TB[..., None]),
        by_action(last_TBC & truncated_TB[..., None]),
        value_LB,
        by_action(np.broadcast_to(final_value_TB[..., None], (horizon, slots, chunk))),
        gamma=gamma,
        lam=lam,
    )
    advantage, returns = (by_chunk(each, chunk) for each in found)
    return advantage, returns


@_non_finite_passes
def n_step_advantages(
    reward_TB: Floats,
    valid_TB: Bools,
    terminated_TB: Bools,
    truncated_TB: Bools,
    value_TB: Floats,
    final_value_TB: Floats,
    *,
    gamma: float | Float64,
    steps: int,
) -> tuple[Float32, Float32]:
    """Advantages and returns of n steps (Sutton and Barto, 2018, eq. 7.1), [T, B].

    With h the smaller of `steps` and the valid entries up to the first boundary or the end,
    R_t = sum_{i<h} gamma^i r_{t+i} + gamma^h V(what follows), and A_t = R_t - V_t. Arguments as in
    `masked_gae_advantages`.
    """
    horizon, slots = reward_TB.shape
    _check_shapes(
        (horizon, slots), valid_TB, terminated_TB, truncated_TB, value_TB[:-1], final_value_TB
    )
    gamma_TB = np.broadcast_to(np.asarray(gamma, dtype=np.float64), (horizon, slots))
    returns_TB = np.zeros((horizon, slots))
    for slot in range(slots):
        entries = np.flatnonzero(valid_TB[:, slot])
        for at, entry in enumerate(entries):
            total, weight = 0.0, 1.0
            window = entries[at : at + steps]
            for one in window:
                total += weight * float(reward_TB[one, slot])
                weight *= float(gamma_TB[one, slot])
                if terminated_TB[one, slot] or truncated_TB[one, slot]:
                    break
            behind = entries[at + steps] if at + steps < len(entries) else horizon
            follows = float(value_TB[behind, slot])
            if terminated_TB[one, slot]:
                follows = 0.0
            elif truncated_TB[one, slot]:
                follows = float(final_value_TB[one, slot])
            returns_TB[entry, slot] = total + weight * follows
    advantage_TB = np.where(valid_TB, returns_TB - value_TB[:-1], 0.0)
    return advantage_TB.astype(np.float32), returns_TB.astype(np.float32)


@_non_finite_passes
def rewards_to_go(
    reward_LB: Floats, valid_LB: Bools, boundary_LB: Bools, *, gamma: float | Float64
) -> Float32:
    """Discounted rewards from each entry to its episode's boundary or to the end, [L, B].

    Nothing is added for what lies behind: R_t = r_t + gamma (1 - boundary_t) R_{t+1} (REINFORCE,
    Williams, 1992, with rewards to go).
    """
    length, slots = reward_LB.shape
    _check_shapes((length, slots), valid_LB, boundary_LB)
    gamma_LB = np.broadcast_to(np.asarray(gamma, dtype=np.float64), (length, slots))
    returns_LB = np.zeros((length, slots))
    carry_B = np.zeros(slots)
    for entry in range(length - 1, -1, -1):
        earned_B = reward_LB[entry] + np.where(boundary_LB[entry], 0.0, gamma_LB[entry] * carry_B)
        carry_B = np.where(valid_LB[entry], earned_B, carry_B)
        returns_LB[entry] = np.where(valid_LB[entry], earned_B, 0.0)
    return returns_LB.astype(np.float32)


def by_action(field_TBC: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[T, B, C] as [T * C, B], actions of a chunk one after the other."""
    horizon, slots, chunk = field_TBC.shape
    return field_TBC.swapaxes(1, 2).reshape(horizon * chunk, slots)


def by_chunk(field_LB: Float32, chunk: int) -> Float32:
    """The inverse of `by_action`."""
    length, slots = field_LB.shape
    return np.ascontiguousarray(field_LB.reshape(length // chunk, chunk, slots).swapaxes(1, 2))


def _check_shapes(expected: tuple[int, int], *fields: npt.NDArray[Any]) -> None:
    for number, field in enumerate(fields, start=1):
        if field.shape != expected:
            raise ValueError(f"argument {number}: expected {expected} entries, got {field.shape}")
