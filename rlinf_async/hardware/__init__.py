"""Cores, memory and host processes. Only the standard library is imported here."""
