"""Images and videos: where they come from, and how they are decoded and resized."""
