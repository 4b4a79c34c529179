"""Arguments and settings: value checks, settings sections, lookup of parts by name, derived seeds."""
