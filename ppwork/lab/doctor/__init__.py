"""The doctor: one look at this machine, and one table of what will run here."""
