"""LoRA adapters: how they are addressed, where they are kept, and which of them answer."""
