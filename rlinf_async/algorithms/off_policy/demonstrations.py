"""Recorded episodes as a replay: this project's recordings, Minari's files, D4RL's flat arrays.

Axes: T steps of an episode, A action components.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.algorithms.off_policy.records import Demonstrations
from rlinf_async.algorithms.off_policy.store import Store
from rlinf_async.errors import BadInput
from rlinf_async.execution.spaces import Spaces
from rlinf_async.models.squashed_acting import scaled
from rlinf_async.recording.reader import Recording

Array = npt.NDArray[Any]
Episode = Mapping[str, Array]
"""One episode: `obs/<name>` [T + 1, *shape], `action` [T, A] in [-1, 1], `reward` [T] or [T, C],
`executed` [T], `terminated` and `truncated` [T]."""


def demonstration_store(record: Demonstrations, spaces: Spaces) -> Store:
    """All episodes in a store of one slot, in this process's own memory.

    Raises BadInput where the file or folder is absent, or is of another environment's spaces.
    """
    path = Path(record.path)
    if path.is_dir():
        episodes = recorded_episodes(path, spaces)
    elif path.is_file():
        episodes = hdf5_episodes(path, spaces)
    else:
        raise BadInput(str(path), "there are no demonstrations")
    kept = list(islice(episodes, record.episodes))
    if not kept:
        raise BadInput(str(path), "holds no episode")
    length = sum(len(each["action"]) + 1 for each in kept) + 2
    store = Store.private(spaces, slots=1, length=length)
    for episode in kept:
        store.insert(_batch_of(episode))
    return store


def recorded_episodes(folder: Path, spaces: Spaces) -> Iterator[Episode]:
    """The episodes of one of this project's recordings."""
    recording = Recording(folder)
    _same(str(folder), "observations", recording.spaces.observation, spaces.observation)
    _same(str(folder), "actions", recording.spaces.action, spaces.action)
    for episode in recording:
        steps = episode.steps
        yield {
            **{f"obs/{s.name}": episode.observations(s.name) for s in spaces.observation},
            "action": scaled(steps["executed_action"], spaces),
            "reward": steps["reward"],
            "executed": steps["executed"],
            "terminated": steps["terminated"],
            "truncated": steps["truncated"],
        }


def hdf5_episodes(path: Path, spaces: Spaces) -> Iterator[Episode]:
    """The episodes of Minari's `main_data.hdf5`, or of a file of D4RL's flat arrays.

    Minari: groups `episode_N` of `observations` [T + 1, ...] (a group where there are several),
    `actions`, `rewards`, `terminations`, `truncations`. D4RL: one array each over all steps, with
    `terminals`, `timeouts` and, where the file has them, `next_observations`.
    """
    try:
        import h5py
    except ImportError:
        raise BadInput(
            str(path), "reading HDF5 needs h5py", fix="pip install 'rlinf_async[offline]'"
        ) from None
    with h5py.File(path, "r") as file:
        names = [name for name in file if name.startswith("episode_")]
        if names:
            for name in sorted(names, key=lambda each: int(each.rpartition("_")[2])):
                yield _minari_episode(str(path), file[name], spaces)
        elif "observations" in file and "timeouts" in file:
            yield from _flat_episodes(file, spaces)
        else:
            raise BadInput(
                str(path), "is neither Minari's nor D4RL's", got=", ".join(sorted(file)[:8])
            )


def _minari_episode(where: str, group: Any, spaces: Spaces) -> Episode:
    stored = group["observations"]
    episode: dict[str, Array] = {}
    for spec in spaces.observation:
        node = stored
        if hasattr(stored, "keys"):
            for part in spec.name.split("/"):
                if part not in node:
                    raise BadInput(where, f"no observation {spec.name!r}", got=list(node))
                node = node[part]
        found = np.asarray(node)
        if found.shape[1:] != spec.shape:
            raise BadInput(
                where, f"observation {spec.name!r}", expected=spec.shape, got=found.shape[1:]
            )
        episode[f"obs/{spec.name}"] = found.astype(spec.dtype)
    return {
        **episode,
        "action": _actions(where, np.asarray(group["actions"]), spaces),
        "reward": np.asarray(group["rewards"]),
        "terminated": np.asarray(group["terminations"], np.bool_),
        "truncated": np.asarray(group["truncations"], np.bool_),
    }


def _flat_episodes(file: Any, spaces: Spaces) -> Iterator[Episode]:
    if len(spaces.observation) != 1:
        raise BadInput(str(file.filename), "flat arrays hold one observation only")
    spec = spaces.observation[0]
    observations = np.asarray(file["observations"], spec.dtype)
    terminated = np.asarray(file["terminals"], np.bool_)
    truncated = np.asarray(file["timeouts"], np.bool_) & ~terminated
    after = (
        np.asarray(file["next_observations"], spec.dtype) if "next_observations" in file else None
    )
    start = 0
    for stop in np.flatnonzero(terminated | truncated) + 1:
        # Without stored successors the last step of a truncated episode has none: it is left out,
        # and the step before it is where the episode was cut. A true end needs no successor.
        whole = after is not None or terminated[stop - 1]
        last = stop if whole else stop - 1
        if last > start:
            end = observations[stop - 1] if after is None else after[stop - 1]
            cut = truncated[start:last].copy()
            cut[-1] |= not whole
            yield {
                f"obs/{spec.name}": np.concatenate([observations[start:last], end[None]]),
                "action": _actions(
                    str(file.filename), np.asarray(file["actions"][start:last]), spaces
                ),
                "reward": np.asarray(file["rewards"][start:last]),
                "terminated": terminated[start:last],
                "truncated": cut,
            }
        start = int(stop)


def _actions(where: str, executed: Array, spaces: Spaces) -> Array:
    size = int(np.prod(spaces.action.shape))
    if int(np.prod(executed.shape[1:])) != size or spaces.chunk > 1:
        raise BadInput(where, "actions", expected=spaces.action.shape, got=executed.shape[1:])
    return scaled(executed, spaces)


def _batch_of(episode: Episode) -> dict[str, Array]:
    """An episode as a batch of one slot; one that was cut off without an end is truncated."""
    steps = len(episode["action"])
    batch: dict[str, Array] = {name: each[:, None] for name, each in episode.items()}
    batch["truncated"] = batch["truncated"].copy()
    if not episode["terminated"][-1]:
        batch["truncated"][-1] = True
    for name in list(batch):
        if name.startswith("obs/"):
            final = np.zeros((steps, *batch[name].shape[1:]), batch[name].dtype)
            final[-1] = batch[name][-1]
            batch[name.replace("obs/", "final/", 1)] = final
    return batch


def _same(where: str, what: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise BadInput(
            where, f"the recorded {what} are another environment's", expected=expected, got=got
        )
