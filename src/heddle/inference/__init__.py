"""Chat completions: the front that every engine shares, and the engines below it."""
