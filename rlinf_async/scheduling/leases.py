"""Who holds the devices: the pure core of phase leases.

Phases that share a device exclude each other; several leases of one phase may be held at once, and
phases without a common device never wait for each other. Turns are fair: a request waits behind
every earlier request of a phase in conflict with it, held or waiting, so a phase cannot renew its
turn while another waits. When a phase's turn comes, all its requests that wait at that moment are
granted together, because each change of phase may cost an offload and an onload.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rlinf_async.errors import BadInput, EngineError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One request for a phase's devices, waiting or held."""

    number: int
    """Requests in order, from 0."""
    phase: str


class LeaseTable:
    """Leases of phases on devices; `devices` maps each phase to the devices that it uses."""

    def __init__(self, devices: Mapping[str, Collection[object]]) -> None:
        self._conflicts = _conflicts(devices)
        self._held: dict[int, Lease] = {}
        self._waiting: dict[int, Lease] = {}  # in the order of request
        self._requested = 0

    def rearrange(self, devices: Mapping[str, Collection[object]]) -> list[Lease]:
        """Give the same phases other devices; returns what is granted thereby.

        Leases in force stay so, and whoever they are now in the way of waits for their end.

        Raises:
            EngineError: two phases that would exclude each other are at work at this moment.
        """
        conflicts = _conflicts(devices)
        busy = {lease.phase for lease in self._held.values()}
        if clash := next((phase for phase in busy if conflicts[phase] & busy), None):
            others = "+".join(sorted(conflicts[clash] & busy))
            raise EngineError(f"{clash} and {others} hold devices that they would have to share")
        self._conflicts = conflicts
        return self._grant()

    @classmethod
    def alternating(cls, *phases: str) -> LeaseTable:
        """A table of phases that all share the same devices."""
        return cls(dict.fromkeys(phases, ("all",)))

    @property
    def held(self) -> tuple[Lease, ...]:
        """The leases in force."""
        return tuple(self._held.values())

    @property
    def waiting(self) -> tuple[Lease, ...]:
        """The requests not granted yet, oldest first."""
        return tuple(self._waiting.values())

    def is_held(self, lease: Lease) -> bool:
        """Whether `lease` is in force."""
        return lease.number in self._held

    def blockers(self, lease: Lease) -> tuple[str, ...]:
        """The phases that hold what a waiting `lease` needs, or wait for it in front of it."""
        rivals = self._conflicts[lease.phase]
        ahead = [other for other in self.waiting if other.number < lease.number]
        phases = [other.phase for other in (*self.held, *ahead) if other.phase in rivals]
        return tuple(dict.fromkeys(phases))

    def request(self, phase: str) -> Lease:
        """Ask for the devices of `phase`; the lease is held at once if nothing is in its way."""
        if phase not in self._conflicts:
            raise BadInput(
                "leases",
                f"unknown phase {phase!r}",
                expected=" or ".join(sorted(self._conflicts)),
                fix=nearest(phase, self._conflicts),
            )
        lease = Lease(number=self._requested, phase=phase)
        self._requested += 1
        self._waiting[lease.number] = lease
        self._grant()
        return lease

    def release(self, lease: Lease) -> list[Lease]:
        """Give a held lease back or withdraw a waiting one; returns what is granted thereby."""
        if lease.number not in self._held and lease.number not in self._waiting:
            raise EngineError(f"lease {lease.number} of phase {lease.phase} was released twice")
        self._held.pop(lease.number, None)
        self._waiting.pop(lease.number, None)
        return self._grant()

    def _grant(self) -> list[Lease]:
        granted: list[Lease] = []
        blocked: set[str] = set()  # phases that wait ahead of the request looked at
        turns: set[str] = set()  # phases whose turn begins now
        busy = {lease.phase for lease in self._held.values()}
        for lease in self.waiting:
            rivals = self._conflicts[lease.phase]
            if lease.phase in turns or not rivals & (busy | blocked):
                turns.add(lease.phase)
                busy.add(lease.phase)
                granted.append(lease)
            else:
                blocked.add(lease.phase)
        for lease in granted:
            self._held[lease.number] = self._waiting.pop(lease.number)
        return granted


def _conflicts(devices: Mapping[str, Collection[object]]) -> dict[str, frozenset[str]]:
    """Phase -> those with a device in common."""
    return {
        phase: frozenset(
            other for other in devices if other != phase and set(used) & set(devices[other])
        )
        for phase, used in devices.items()
    }
