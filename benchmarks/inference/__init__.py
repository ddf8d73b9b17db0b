"""Parts of the inference benchmarks: models, limits of the machine, drivers of heddle's engine and of its peers."""
