"""The interface of Anthropic's clients: messages of content blocks."""
