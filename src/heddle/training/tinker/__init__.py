"""Tinker's protocol: client programs that say each gradient and each optimizer step."""
