"""All state at one point of the log, kept in Redis: heads, blobs, and the one script that accepts a save."""
