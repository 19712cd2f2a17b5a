"""Groups of whole episodes through a run: the same bits everywhere, and what is refused."""

import json

import pytest

from rlinf_async.errors import BadInput
from rlinf_async.execution.definitions import Policy
from rlinf_async.execution.episodes import check_episodes, extent_of
from rlinf_async.hardware.devices import available_cores
from rlinf_async.scheduling.work_list import Episodes
from tests.execution.test_reproducible import parameters_of

CORES = available_cores()
APART = f"render={CORES[0]},{CORES[-1]}; rollout+train={CORES[-1]}; depth=1"


def rows(run):
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.process
def test_groups_train_the_same_bits_in_one_process_and_in_many(launch):
    lagged = ("--max-lag", "1", "--kl-weight", "0", "--cell", "2")
    serial = launch("grouped.py", "--mode", "serial", *lagged)
    apart = launch("grouped.py", "--placement", APART, "--poison", *lagged)
    assert parameters_of(serial) == parameters_of(apart)
    statistics = [r.run_dir / "checkpoint" / "statistics.safetensors" for r in (serial, apart)]
    assert statistics[0].read_bytes() == statistics[1].read_bytes()
    found = rows(serial)
    assert all(row["train/first_log_ratio_max"] <= 1e-5 for row in found[:1])
    for row in found:
        tried, tied = row["train/groups_tried"], row["train/groups_tied"]
        assert row["train/groups_kept"] == min(4, tried - tied)
        assert tried == 7 or tried - tied >= 4
    assert any(row["train/groups_tried"] > 4 for row in found), "no tie was ever replaced"


@pytest.mark.process
@pytest.mark.slow
def test_what_cutting_stragglers_does_is_told(launch):
    cut = ("--keep-share", "0.5", "--replacements", "0", "--lag", "free", "--cell", "2")
    run = launch("grouped.py", "--mode", "serial", *cut)
    assert run.finish() == 0, run.stderr
    for row in rows(run):
        assert 0 < row["train/cut_episodes"] <= 8
        assert row["train/kept_length_mean"] > 0
        assert "train/cut_length_mean" in row


@pytest.mark.parametrize(
    ("memory", "lag", "share", "what"),
    [({"h": (4,)}, "exact", None, "remembers"), ({}, "exact", 0.5, "keep_share")],
)
def test_episodes_that_cannot_be_collected_are_refused(memory, lag, share, what):
    policy = Policy(factory={}, name="P", normalize_observations=False, memory=memory)
    episodes = Episodes(groups=2, size=2, limit=5, keep_share=share)
    with pytest.raises(BadInput, match=what):
        check_episodes(episodes, policy, lag=lag, deterministic=True)


@pytest.mark.parametrize("given", [{}, {"horizon": 4, "episodes": True}, {"horizon": 0}])
def test_what_a_segment_covers_must_be_said_once(given):
    given = {"horizon": None, "episodes": None, **given}
    if given["episodes"]:
        given["episodes"] = Episodes(groups=1, size=2, limit=3)
    with pytest.raises(BadInput, match="horizon"):
        extent_of(**given)
