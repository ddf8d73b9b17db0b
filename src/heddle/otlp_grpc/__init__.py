"""OTLP over gRPC: a process of its own in front of the HTTP routes.

What a client of this port does, it does to that process; the server sees requests as any exporter over HTTP sends
them, so that keys, projects, limits, counts and answers are those of HTTP.
"""
