"""Arguments and settings: checks of values, tables of settings, parts by name, derived seeds."""
