"""What a script's own code may do in the flow, and what the user reads when it is wrong."""

import numpy as np
import pytest

pytestmark = pytest.mark.process

RAISES = {
    "stage_raises": "LookupError: the stage has had enough",
    "main_raises": "LookupError: main has had enough",
    "main_raises_before_pipeline": "LookupError: main has had enough",
}
MISUSES = {
    "stage_ends_early": "short",
    "stage_drops": "stage 'dropping' took 2 items of 'batches' and yielded 1; no more can come",
    "no_publish": "publish() of version 1",
    "publish_twice": "publish() without a train() before it",
    "publish_first": "publish() without a train() before it",
    "train_twice": "batch 0 came to train before publish() of version 1",
    "last_publish_missing": "publish() of version 3",
}


@pytest.mark.parametrize("mode", ["serial", "collocated"])
def test_script_runs_to_its_end(launch, mode):
    run = launch("faults.py", "--mode", mode)
    assert run.finish() == 0
    assert run.stderr == ""
    assert run.iterations() == 3
    assert (run.run_dir / "checkpoint" / "COMPLETE").exists()


@pytest.mark.parametrize("fault", RAISES)
def test_exception_of_the_script_is_shown_with_the_script_s_frames_only(launch, fault):
    run = launch("faults.py", "--fault", fault)
    assert run.finish() == 1
    assert run.stderr.startswith("error: the script failed\nTraceback")
    assert RAISES[fault] in run.stderr
    assert "faults.py" in run.stderr
    assert "execution/pipeline.py" not in run.stderr
    assert "RuntimeWarning" not in run.stderr
    assert run.stderr.count("error: ") == 1


@pytest.mark.parametrize("fault", MISUSES)
def test_misuse_of_train_and_publish_is_one_clear_error(launch, fault):
    run = launch("faults.py", "--fault", fault)
    assert run.finish(15) == 1
    assert MISUSES[fault] in run.stderr.splitlines()[0]
    assert run.stderr.count("error: ") == 1


def test_settings_that_change_between_batches_are_refused(launch):
    run = launch("faults.py", "--fault", "settings_change")
    assert run.finish() == 2
    assert "epochs changed after the first batch; use a schedule" in run.stderr


def test_main_may_stop_early_and_keeps_what_it_trained(launch):
    run = launch("faults.py", "--fault", "main_leaves_early")
    assert run.finish() == 0
    assert run.iterations() == 1
    assert (run.run_dir / "checkpoint" / "COMPLETE").exists()


@pytest.mark.parametrize(
    "mode", ["serial", "disaggregated", pytest.param("collocated", marks=pytest.mark.slow)]
)
def test_worker_of_the_user_reads_batches_from_a_stage_of_the_user(launch, mode):
    run = launch("workers.py", "--mode", mode)
    assert run.finish() == 0, run.stderr
    scores = [line.split()[1:] for line in run.out if line.startswith("score")]
    own_process = str(mode != "serial")
    assert scores == [[str(n), "8.0", own_process] for n in range(3)]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise", "failed in scorer-0.fail: LookupError: the worker has had enough"),
        ("exit", "worker scorer-0 (stage scorer-0) exited with code 7 during scorer-0.fail("),
    ],
)
def test_failure_of_the_user_s_worker_is_reported_with_its_command(launch, fault, expected):
    run = launch("workers.py", "--fault", fault)
    assert run.finish() == 1
    assert expected in run.stderr.splitlines()[0]
    assert run.stderr.count("error: ") == 1


def test_unknown_method_of_a_worker_names_the_nearest_one(launch):
    run = launch("workers.py", "--fault", "unknown_method")
    assert run.finish() == 2
    assert "worker scorer-0: no method 'scor'; did you mean 'score'?" in run.stderr


def test_worker_that_is_called_before_the_pipeline_opens_is_an_error_not_a_wait(launch):
    run = launch("workers.py", "--fault", "early_call")
    assert run.finish(15) in (1, 2)
    assert "scorer-0" in run.stderr.splitlines()[0]


def test_minibatch_that_was_not_finite_is_skipped_and_written_down(launch):
    run = launch("faults.py", "--mode", "serial", "--fault", "nan_reward")
    assert run.finish() == 0
    dumps = sorted((run.run_dir / "dumps").iterdir())
    assert [path.name for path in dumps] == ["non_finite_0.npz"]
    with np.load(dumps[0]) as kept:
        assert any(np.isnan(kept[name]).any() for name in kept.files)
