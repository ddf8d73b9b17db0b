"""What several groups share on the wire: pure functions and types, no input or output."""
