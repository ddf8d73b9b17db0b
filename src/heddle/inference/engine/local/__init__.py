"""The embedded engine: continuous batching on torch, in a process of its own."""
