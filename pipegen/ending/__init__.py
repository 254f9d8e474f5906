"""From ids to text, and where a row ends: the one judge of an end."""
