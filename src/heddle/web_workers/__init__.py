"""Several processes that answer requests on one machine, while one process writes (SQLite).

The writing process owns the services: the writer, the engine, everything in the background. Each worker accepts
connections on the same port, answers reads from readers of its own, and parses, checks and packs what is to be stored
before it hands that over; everything else it passes on whole.
"""
