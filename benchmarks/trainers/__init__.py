"""The parts of `training.py`: data, and drivers that run in the environment of what they measure."""
