"""The figures of docs/performance.md, each against its baseline: `make bench`."""

import os

# Before numpy is loaded, as the command does, for everything that is measured: threads of BLAS that wait for the next
# sum would be counted as time of the measured code.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
