"""`heddle demo`: a traced program against a real server, and a look at what was stored."""
