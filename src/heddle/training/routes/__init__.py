"""The routes of training, one module per group."""
