"""Helpers shared by the tests and the benchmarks: a real server process, generated payloads."""
