"""Replays: stored chats run again with another model, prompt or adapter step, beside what was answered then."""
