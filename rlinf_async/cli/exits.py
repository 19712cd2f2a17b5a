"""Exit codes of every command."""

from __future__ import annotations

OK = 0
FAILED = 1
BAD_INPUT = 2
SIGNAL_BASE = 128
"""A run ended by signal n exits with 128 + n: 130 for SIGINT, 143 for SIGTERM."""

HELP = """\
exit codes:
  0    the run ended well
  1    the run failed; the first cause is printed first
  2    wrong input, found before any worker started
  130  interrupted by Ctrl-C (SIGINT)
  143  ended by SIGTERM"""
