"""The training process: composes the trainer and the chat template, and talks to the server or to a person's shell."""
