import os
import subprocess
import sys
import tempfile

import pytest

from rlinf_async.communication.runtime_folder import RuntimeFolder, remove_stale
from rlinf_async.errors import BadInput

OWNER = """
import sys
from pathlib import Path
from rlinf_async.communication.runtime_folder import RuntimeFolder
folder = RuntimeFolder.create(Path(sys.argv[1]))
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """A process that owns a runtime folder in tmp_path, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    folder = tmp_path / process.stdout.readline().strip()
    yield process, folder
    process.kill()
    process.communicate()


def test_the_folder_is_private_and_goes_away(tmp_path):
    folder = RuntimeFolder.create(tmp_path)
    assert folder.path.parent == tmp_path
    assert folder.path.name.startswith(f"rlinf-{os.getuid()}-")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_addresses_are_short_stable_and_different(tmp_path):
    folder = RuntimeFolder.create(tmp_path)
    long = folder.socket_address("a very long host name " * 20)
    assert long == folder.socket_address("a very long host name " * 20)
    assert long != folder.socket_address("another")
    assert long.startswith(f"ipc://{folder.path}/")
    assert len(long) - len(f"ipc://{folder.path}/") == 12
    folder.remove()


def test_a_long_tmpdir_is_refused_with_the_fix(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 150)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(BadInput) as caught:
        RuntimeFolder.create()
    text = str(caught.value)
    assert str(long) in text
    assert "at most 107 bytes" in text
    assert "TMPDIR=/tmp" in text
    assert caught.value.exit_code == 2
    assert list(long.iterdir()) == []


def test_a_place_without_permission_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadInput, match="cannot create"):
        RuntimeFolder.create(file)


def test_a_folder_in_use_is_not_stale(owner, tmp_path):
    _, folder = owner
    assert remove_stale(tmp_path) == []
    assert folder.is_dir()


def test_the_folder_of_a_killed_owner_is_removed(owner, tmp_path):
    process, folder = owner
    process.kill()
    process.wait()
    assert folder.is_dir()
    assert remove_stale(tmp_path) == [folder]
    assert not folder.exists()


def test_what_is_not_ours_is_never_removed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    names = [f"rlinf-{os.getuid()}-zzzzzzzz", f"rlinf-{os.getuid() + 1}-00000000", "other"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / f"rlinf-{os.getuid()}-0000000a").symlink_to(elsewhere)
    (tmp_path / f"rlinf-{os.getuid()}-0000000b").touch()
    assert remove_stale(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 6


def test_a_folder_that_is_just_being_made_is_left_alone(tmp_path):
    fresh = tmp_path / f"rlinf-{os.getuid()}-0000000a"
    fresh.mkdir()
    assert remove_stale(tmp_path) == []
    os.utime(fresh, (0, 0))
    assert remove_stale(tmp_path) == [fresh]
