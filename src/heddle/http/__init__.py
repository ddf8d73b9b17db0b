"""The HTTP side of a server: connections, bodies, middleware, and what every router shares."""
