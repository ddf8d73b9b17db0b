"""Where everything is kept: verbs of the domain above, SQL below, no HTTP."""
