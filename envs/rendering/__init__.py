"""Camera images of MuJoCo simulations: fast by default, one context for all slots of a cell.

Names are imported when first used: only those who draw load OpenGL.
"""

from __future__ import annotations

from rlinf_async.envs.rendering.pixels import Pixels

__all__ = ["Pixels"]
