"""What the members of an archive are called, and how large they may be."""

HEADER, MANIFEST = "heddle-archive.json", "manifest.json"
BLOBS, FOLDERS = "blobs/", "folders/"
CALLS, RECORDS = "calls", "records"
JSON_LINES, PARQUET = ".jsonl", ".parquet"
MOST_BYTES = 512 << 20
"""The most bytes of one member of records, packed and unpacked."""
