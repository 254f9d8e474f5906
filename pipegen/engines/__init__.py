"""What an engine is: its protocol, its capabilities, its plugins, and its name."""
