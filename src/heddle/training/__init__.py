"""Reinforcement learning and fine-tuning on what happened: from trajectories to a policy that is served at once."""
