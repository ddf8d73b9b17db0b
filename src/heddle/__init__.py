"""heddle: trace, evaluate, serve and train language-model software on one self-hosted server."""

__version__ = "0.1.0"
