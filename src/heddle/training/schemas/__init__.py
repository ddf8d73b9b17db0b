"""What requests of training hold: checked whole, with the place of everything that is wrong."""
