"""The page at `/`: its files, and `page`, which serves them and makes the body that they poll."""
