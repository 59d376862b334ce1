"""The figures of docs/performance.md, each beside its baseline: `make bench`."""

import os

# Before numpy is loaded, as the command does, and for all that is measured beside it: threads of BLAS that wait for the
# next sum would be counted as time of what is measured then.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
