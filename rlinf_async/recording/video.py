"""Video of frames as they come: H.264 in MP4, in bounded memory."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlinf_async.errors import BadInput

# axes: H height, W width
Frame = npt.NDArray[np.uint8]

QUALITY = 18
"""H.264's constant rate factor: 0 is lossless, 18 is hard to tell from it, 51 is the worst."""
INSTALL = "pip install 'rlinf_async[video]'"


def check_video_installed(who: str) -> None:
    """BadInput where the encoder is missing; imports nothing."""
    if importlib.util.find_spec("av") is None:
        raise BadInput(who, "module 'av' is not installed", fix=INSTALL)


class VideoWriter:
    """One MP4 file that grows frame by frame and appears under its name when it is closed.

    The encoder holds some ten frames, whatever the video's length. Width and height must be even
    in this pixel format: an odd edge is repeated once.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        fps: float,
        quality: int = QUALITY,
        keyframe_every: int | None = None,
    ) -> None:
        """`fps`: frames per second, > 0. BadInput where `av` is not installed.

        A player can begin at keyframes only: few of them make small files, many quick random
        access. None leaves it to the encoder.
        """
        if not fps > 0.0:
            raise BadInput("video", "frames per second", expected="> 0", got=fps)
        check_video_installed("video")
        self.path = Path(path)
        self.frame_count = 0
        self._rate = Fraction(fps).limit_denominator(1001)
        self._quality, self._keyframe_every = quality, keyframe_every
        self._draft = self.path.with_name(f".{self.path.name}.draft")
        self._shape: tuple[int, ...] = ()
        self._container: Any = None
        self._stream: Any = None

    def add(self, frame: Frame) -> None:
        """Encode one frame, uint8 [H, W, 3] in RGB; all frames are of the first one's shape."""
        import av

        if self._container is None:
            self._open(frame)
        if frame.shape != self._shape or frame.dtype != np.uint8:
            raise ValueError(
                f"frame: expected uint8 {self._shape}, got {frame.dtype} {frame.shape}"
            )
        image = av.VideoFrame.from_ndarray(np.ascontiguousarray(_even(frame)), format="rgb24")
        image.pts = self.frame_count
        self.frame_count += 1
        self._container.mux(self._stream.encode(image))

    @property
    def written_bytes(self) -> int:
        """Size of the file so far."""
        return self._draft.stat().st_size if self._draft.exists() else 0

    def close(self) -> None:
        """Write what the encoder holds and put the file in its place; nothing without frames."""
        if self._container is None:
            return
        self._container.mux(self._stream.encode(None))
        self._container.close()
        self._container = None
        self._draft.replace(self.path)

    def discard(self) -> None:
        """Forget the video."""
        if self._container is not None:
            self._container.close()
            self._container = None
            self._draft.unlink(missing_ok=True)

    def _open(self, frame: Frame) -> None:
        import av

        if frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(f"frame: expected uint8 [H, W, 3], got {frame.dtype} {frame.shape}")
        self._shape = frame.shape
        height, width = _even(frame).shape[:2]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(self._draft), "w", format="mp4")
        stream = self._container.add_stream("libx264", rate=self._rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = stream.codec_context.time_base = 1 / self._rate
        stream.options = {"crf": str(self._quality), "preset": "veryfast"}
        if self._keyframe_every is not None:
            stream.codec_context.gop_size = self._keyframe_every
        # Cores are given to workers, not taken by them.
        stream.codec_context.thread_count = 1
        self._stream = stream


def _even(frame: Frame) -> Frame:
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return frame
