"""The injectors: faults of the catalogue as they happen inside a rank."""
