"""The routes of inference, with the bodies that they read and write."""
