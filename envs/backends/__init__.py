"""Where environments that are not batched are stepped: in a loop, in threads, or in processes.

Whichever it is, every slot has the same environment, the same seeds and the same trajectory.
"""
