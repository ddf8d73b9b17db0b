"""Moving what is stored: archives of projects, and what other products hold."""
