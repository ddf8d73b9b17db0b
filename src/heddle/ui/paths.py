"""Which page shows at which address; one table for the server, which preloads, and the browser, which routes."""

PROJECT = "/:entity/:project/weave"

PAGES: tuple[tuple[str, str], ...] = (
    ("/", "projects"),
    ("/settings", "settings"),
    ("/inference", "inference"),
    (PROJECT, "overview"),
    ("/:entity/:project/r/call/:call", "call"),
    (f"{PROJECT}/calls/:call", "call"),
    (f"{PROJECT}/traces", "calls"),
    (f"{PROJECT}/traces/:trace", "trace"),
    (f"{PROJECT}/threads", "threads"),
    (f"{PROJECT}/threads/*thread", "thread"),
    (f"{PROJECT}/agents", "threads"),
    (f"{PROJECT}/agents/conversations", "threads"),
    (f"{PROJECT}/agents/conversations/*thread", "conversation"),
    (f"{PROJECT}/costs", "costs"),
    (f"{PROJECT}/alerts", "alerts"),
    (f"{PROJECT}/evaluations", "evaluations"),
    (f"{PROJECT}/evaluations/compare", "compare"),
    (f"{PROJECT}/evaluations/:run", "evaluation"),
    (f"{PROJECT}/leaderboards", "leaderboards"),
    (f"{PROJECT}/leaderboards/:name", "leaderboard"),
    (f"{PROJECT}/scorers", "scorers"),
    (f"{PROJECT}/datasets", "datasets"),
    (f"{PROJECT}/datasets/:name", "dataset"),
    (f"{PROJECT}/queues", "queues"),
    (f"{PROJECT}/queues/:queue", "queue"),
    (f"{PROJECT}/queues/:queue/work", "work"),
    (f"{PROJECT}/replays", "replays"),
    (f"{PROJECT}/replays/:replay", "replay"),
    (f"{PROJECT}/playground", "playground"),
    (f"{PROJECT}/objects", "objects"),
    (f"{PROJECT}/objects/:name/versions/:version", "object"),
    (f"{PROJECT}/prompts", "objects"),
    (f"{PROJECT}/ops", "ops"),
    (f"{PROJECT}/ops/:name/versions/:version", "op"),
    (f"{PROJECT}/models", "models"),
    (f"{PROJECT}/training", "training"),
    (f"{PROJECT}/training/:job", "job"),
    (f"{PROJECT}/trajectories", "trajectories"),
    (f"{PROJECT}/inference", "inference"),
    (f"{PROJECT}/settings", "settings"),
)
"""Pattern and page, the first that fits; `:name` is one part of a path, `*name` all the rest."""


def find(path: str) -> str | None:
    """The page of a path below the root, or None."""
    parts = path.rstrip("/").split("/")
    return next((page for pattern, page in PAGES if _fits(pattern.rstrip("/").split("/"), parts)), None)


def _fits(pattern: list[str], parts: list[str]) -> bool:
    for index, wanted in enumerate(pattern):
        if wanted.startswith("*"):
            return len(parts) > index
        if index >= len(parts) or not (bool(parts[index]) if wanted.startswith(":") else wanted == parts[index]):
            return False
    return len(parts) == len(pattern)
