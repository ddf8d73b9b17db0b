"""The recipe of the shipped model `heddle-tiny`: its words, its tasks, its training."""
