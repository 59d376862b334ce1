"""One running process: its tasks, and what it shows of itself."""
