"""What people give: checks of arguments, parts by name, settings in sections, seeds."""
