"""What is made of results."""
