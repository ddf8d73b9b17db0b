"""What the routes ask for: models, jobs, logs."""
