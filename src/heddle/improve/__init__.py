"""Improvements: weak calls become a dataset, training, a gate, a promotion and a watch, in one durable job."""
