"""From trajectories to packed rows of tokens: sampled ids as they are, advantages, weights."""
