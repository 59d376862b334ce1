"""What is learned and how: plain functions and objects, fed with bytes and offsets. No I/O, no asyncio, no clock.

Start with `identity`, the settings that give events their meaning, and `rules`. Then `learner`, which applies records:
it decodes them (`events/`), maps names to columns (`columns/`), learns (`classifier`, `kernel/`) and follows what is
learned (`evaluation/`). `join/` holds events until their labels come, and `best` chooses who answers. `finite/` learns
from a file instead. `records` and `options` are what a learner is fed with, `weights_file` reads weights to begin with,
and `jit` compiles loops.
"""
