"""The embedded store: one SQLite file, one writer thread with group commit, one connection per reader thread."""
