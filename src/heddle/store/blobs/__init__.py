"""Content-addressed files, in a folder or in an object store."""
