"""A read-only Model Context Protocol server over the API of a running heddle, for assistants that debug from traces."""
