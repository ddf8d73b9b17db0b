"""What runs durable queues of jobs: evaluations and training plug in."""
