"""Our own episode accounting."""

import numpy as np

from rlinf_async.workers.episodes import EpisodeSums, EpisodeTracker


def test_every_episode_of_three_steps_reports_three_and_three():
    tracker = EpisodeTracker(run_seed=0, first_slot=8, slots=2)
    finished = []
    for step in range(1, 13):
        tracker.acted(step // 5)
        tracker.step(np.array([1.0, 2.0]), None)
        if step % 3 == 0:
            tracker.finish(0, step // 5)
        finished += tracker.take_finished()
    assert [e["length"] for e in finished] == [3, 3, 3, 3]
    assert [e["episode_return"] for e in finished] == [3.0, 3.0, 3.0, 3.0]
    assert [e["number"] for e in finished] == [0, 1, 2, 3]
    assert {e["slot"] for e in finished} == {8}


def test_an_episode_names_the_first_and_the_last_version_that_acted_in_it():
    tracker = EpisodeTracker(run_seed=0, first_slot=0, slots=1)
    spans = []
    for version, ends in [(0, False), (1, True), (2, False), (2, False), (4, True)]:
        tracker.acted(version)
        tracker.step(np.ones(1), None)
        if ends:
            tracker.finish(0, version)
    for episode in tracker.take_finished():
        spans.append((episode["first_version"], episode["last_version"]))
    assert spans == [(0, 1), (2, 4)]


def test_an_episode_names_the_task_of_its_slot():
    tracker = EpisodeTracker(run_seed=0, first_slot=4, slots=2, tasks=("reach", "push"))
    for slot in (1, 0):
        tracker.finish(slot, 0)
    assert [(e["slot"], e["task"]) for e in tracker.take_finished()] == [(5, "push"), (4, "reach")]


def test_success_counts_once_and_at_the_end_and_never_leaks_into_the_next_episode():
    tracker = EpisodeTracker(run_seed=0, first_slot=0, slots=1)
    for success in [True, False]:
        tracker.step(np.zeros(1), np.array([success]))
    tracker.finish(0, 0)
    tracker.step(np.zeros(1), np.array([False]))
    tracker.finish(0, 0)
    first, second = tracker.take_finished()
    assert (first["success_once"], first["success_at_end"]) == (True, False)
    assert (second["success_once"], second["success_at_end"]) == (False, False)


def test_without_reported_success_an_episode_claims_none():
    tracker = EpisodeTracker(run_seed=0, first_slot=0, slots=1)
    tracker.step(np.zeros(1), None)
    tracker.finish(0, 0)
    assert tracker.take_finished()[0]["success_once"] is None


def test_a_chunk_counts_what_was_executed_and_any_success_within_it():
    sums = EpisodeSums(3)
    sums.step(
        np.array([[1.0, 2.0], [4.0, 0.0], [0.0, 0.0]]),
        np.array([False, True, False]),
        executed_n=np.array([2, 1, 0]),
        within_n=np.array([True, True, False]),
    )
    sums.step(np.zeros(3), np.zeros(3, bool), executed_n=np.array([0, 0, 1]))
    first, second, third = (sums.take(slot) for slot in range(3))
    assert first == {
        "episode_return": 3.0,
        "length": 2,
        "success_once": True,
        "success_at_end": False,
    }
    assert (second["length"], second["success_at_end"]) == (1, True)
    assert (third["length"], third["success_once"]) == (1, False)
    assert sums.take(0)["length"] == 0


def test_seeds_differ_by_slot_and_episode_and_repeat_with_the_run_seed():
    def seeds(run_seed):
        tracker = EpisodeTracker(run_seed, first_slot=0, slots=3)
        found = tracker.first_seeds()
        for slot in range(3):
            found.append(tracker.next_seed(slot))
        return found

    assert len(set(seeds(1))) == 6
    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))
