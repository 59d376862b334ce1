"""What compiled loops stand on.

`jit` compiles them and keeps the result on disk. `intrinsics` reads memory at an address.
"""
