"""Several servers on a virtual clock: every delay, loss and crash follows from one seed."""
