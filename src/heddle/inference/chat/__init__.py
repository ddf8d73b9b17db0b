"""One chat completion: from its request over its plan to its choices and its answer."""
