"""All routes of the agents reads."""

from fastapi import APIRouter

from heddle.http import group
from heddle.trace.agents import agents, chat_routes, conversations, search, spans, stats

router: APIRouter = group("Agents")
for module in (agents, spans, stats, search, chat_routes, conversations):
    router.routes.extend(module.router.routes)
