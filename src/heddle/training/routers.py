"""The routers of training."""

from heddle.training.routes import base_models, checkpoints, jobs, logs, models, sft_jobs

ROUTERS = tuple(module.router for module in (models, checkpoints, logs, jobs, sft_jobs, base_models))
