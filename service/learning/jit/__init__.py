"""The compiler of loops, and machine instructions for them.

`jit` compiles them and keeps the result on disk. `intrinsics` reads memory at an address.
"""
