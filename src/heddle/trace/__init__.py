"""The trace service: one file (or folder) per group of the interface, with its models, routes and rules."""
