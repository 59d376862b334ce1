"""`python -m tests.releases` writes the file of this release: once, when it is made."""

from tests.releases import write

print(write())
