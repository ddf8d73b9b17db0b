"""What is served: the folder of the model, its tokenizer and formats, and the engine behind it."""
