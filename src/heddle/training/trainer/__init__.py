"""The torch side of training: objective, policy, optimizer steps, and a whole job as one function."""
