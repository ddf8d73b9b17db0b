"""From calls of the trace service to trajectory groups."""
