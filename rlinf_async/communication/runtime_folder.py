"""The private folder of one run, where its sockets live.

Only socket files lie there (shared memory has no names), so a killed owner leaves nothing but a
few empty files, and `remove_stale` sweeps those at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Self

from rlinf_async.errors import BadInput

ADDRESS_LIMIT = 107
"""Bytes of a Unix socket's path on Linux, its final zero byte excluded."""

_HASH_LENGTH = 12
_UNLOCKED_GRACE_S = 60.0


class RuntimeFolder:
    """A folder `rlinf-<uid>-<8 hex>` of mode 0700 whose `lock` file the owner holds."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def create(cls, parent: Path | None = None) -> Self:
        """Make and lock a new folder in `parent` (default: the system's temporary folder).

        Raises:
            BadInput: no writable place, or a path too long for sockets.
        """
        parent = parent or _temporary_folder()
        path = parent / f"rlinf-{os.getuid()}-{secrets.token_hex(4)}"
        _check_length(_socket_path(path, "any"))
        try:
            path.mkdir(mode=0o700)
            return cls(path, _lock_new(path))
        except OSError as cause:
            raise BadInput(
                "runtime folder",
                f"cannot create {path}: {cause.strerror}",
                fix="set TMPDIR to a folder that you may write to, for example TMPDIR=/tmp",
            ) from cause

    def socket_address(self, name: str) -> str:
        """`ipc://...` for the socket called `name` (any length): always the same, always short."""
        path = _socket_path(self.path, name)
        _check_length(path)
        return f"ipc://{path}"

    def remove(self) -> None:
        """Delete the folder and let go of the lock. May be called twice."""
        if self._lock is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = None


def remove_stale(parent: Path | None = None) -> list[Path]:
    """Delete this user's folders whose owner has ended without removing them; returns them."""
    parent = parent or _temporary_folder()
    ours = re.compile(rf"rlinf-{os.getuid()}-[0-9a-f]{{8}}")
    removed = []
    with contextlib.suppress(OSError):
        for path in sorted(parent.iterdir()):
            if ours.fullmatch(path.name) and _is_stale(path):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
    return removed


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as cause:
        raise BadInput(
            "runtime folder",
            "no writable folder for temporary files",
            fix="set TMPDIR to a folder that you may write to",
        ) from cause


def _socket_path(folder: Path, name: str) -> Path:
    return folder / hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]


def _check_length(path: Path) -> None:
    length = len(os.fsencode(path))
    if length > ADDRESS_LIMIT:
        raise BadInput(
            "runtime folder",
            f"a socket's path in TMPDIR ({os.environ.get('TMPDIR', path.parent.parent)})"
            " would be too long",
            expected=f"at most {ADDRESS_LIMIT} bytes",
            got=f"{length} bytes",
            fix="start with a short one: TMPDIR=/tmp",
        )


def _lock_new(folder: Path) -> int:
    """Lock first, then give the file its name: a `lock` that exists has been locked once."""
    fresh = folder / "lock.new"
    lock = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fresh.rename(folder / "lock")
    return lock


def _is_stale(folder: Path) -> bool:
    """True if this user owns `folder` and nobody holds its lock."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Its owner may be between making the folder and locking it, but not for a minute. File
        # times are wall-clock times, hence no monotonic clock here.
        return time.time_ns() / 1e9 - status.st_mtime > _UNLOCKED_GRACE_S
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
