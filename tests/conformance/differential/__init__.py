"""The differential test: the same random operations sent to the reference's in-memory server and to heddle."""
