"""Forward passes, linears, adapters and the loading of model folders: the ground of inference and training."""
