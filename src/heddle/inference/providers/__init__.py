"""Other servers of models, as the settings name them."""
