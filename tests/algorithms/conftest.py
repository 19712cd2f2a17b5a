"""Hypothesis without deadlines (the machine is shared), and with the same examples every time."""

from hypothesis import settings

settings.register_profile("algorithms", deadline=None, derandomize=True)
settings.load_profile("algorithms")
